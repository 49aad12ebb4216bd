"""Templates of the pages, with relative addresses that work under any static prefix."""
