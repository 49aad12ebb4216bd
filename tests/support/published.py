"""A matrix that others published: the second place of the CLEAR-10 challenge, CVPR 2022.

Source: the accuracy matrix in the prediction file that the team of second place published with its
solution to the 1st CLEAR challenge (row: trained through, column: tested on), to the digit.
"""

from pathlib import Path

import numpy as np

SECOND_PLACE = np.loadtxt(Path(__file__).with_name("second_place.csv"), delimiter=",").tolist()
