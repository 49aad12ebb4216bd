"""Templates of the pages; addresses in them are relative: they hold under any static prefix."""
