"""The heat map."""

import itertools
import warnings

import matplotlib as mpl
import numpy as np
import pytest

from clear_mlflow import AccuracyMatrix
from clear_mlflow.report import pictures

TEN = AccuracyMatrix(np.full((10, 10), 1.0), initial=[0.0912] * 10)


def heatmap_array(matrix: AccuracyMatrix, title: str) -> np.ndarray:
    return pictures.decode_png(pictures.draw_heatmap_png(matrix, title))


def texts(matrix: AccuracyMatrix, title: str) -> list[str]:
    return [text.get_text() for text in pictures.draw_heatmap(matrix, title).axes[0].texts]


@pytest.mark.fast_cases(7)
@pytest.mark.parametrize(
    "text", ["$x^{", "$\\frac{1}{0}$", "%", "\\", "a\x00b\nc", "名前", "\ud800", "😀", "_{}^", ""]
)
def test_any_text_can_be_drawn(text):
    key = text if text.isprintable() and text else "$"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures.draw_heatmap_png(AccuracyMatrix([[0.5]], buckets=[key]), text)
        drawn_texts = texts(AccuracyMatrix([[0.5]], buckets=[key]), text)
    assert {"$x^{": "$x^{", "名前": "□□", "a\x00b\nc": "a�b�c"}.get(text, "initial") in drawn_texts


def test_pictures_of_one_stream_have_one_size():
    """Since they are displayed side by side."""
    untrained = AccuracyMatrix(np.empty((0, 10)))
    titles = ((TEN, ""), (TEN.after(3), "x" * 500), (untrained, "a\nb"))
    assert len({heatmap_array(matrix, title).shape for matrix, title in titles}) == 1


def test_colours_are_on_a_fixed_scale():
    alone = AccuracyMatrix([[0.5, 0.5], [0.5, 0.5]])
    among = AccuracyMatrix([[0.5, 0.0], [1.0, 0.5]])
    first_colours, other = (heatmap_array(matrix, "") for matrix in (alone, among))
    height = first_colours.shape[0]
    # Inside the first cell of the matrix, away from its number and its outline.
    y, x = int(height - 0.25 * 120 - 1.7 * 120 + 20), 120 + 14
    np.testing.assert_array_equal(first_colours[y, x], other[y, x])
    assert (first_colours != other).any()


def test_unmeasured_cells_look_different_from_zero():
    zero = AccuracyMatrix([[0.0]])
    unknown = AccuracyMatrix(np.empty((0, 1)))
    assert "0.0" in texts(zero, "")
    assert not any("." in text for text in texts(unknown, ""))
    drawn_texts = texts(AccuracyMatrix([[0.123, 0.456]], initial=[0.01, 0.02]), "naive, seed 0")
    assert {"12.3", "45.6", "1.0", "2.0", "tested on bucket", "naive, seed 0"} <= {*drawn_texts}
    cells = heatmap_array(unknown, "")[-150:-50, 130:200]
    assert (cells.max(axis=2) == cells.min(axis=2)).all()
    assert len(np.unique(cells)) > 2


@pytest.mark.parametrize("size", [1, 2, 12, 40, 300])
def test_matrices_of_any_size_fit_on_a_screen(size):
    matrix = AccuracyMatrix(np.full((size, size), 0.5))
    figure = pictures.draw_heatmap(matrix, "title")
    assert max(figure.get_size_inches()) < 10
    assert len(figure.axes[0].texts) < 12 * 12 + 2 * 12 + 20


MONTHS = [f"2024-{month:02d}" for month in range(1, 13)]
LONG = [f"camera {j} of the north, first half of the year" for j in range(3)]


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("keys", [["old", "new"], MONTHS, LONG, [str(j) for j in range(40)]])
@pytest.mark.parametrize("width", [2.7, 3.3, 6.5, None])
def test_texts_do_not_overlap_or_leave_the_figure(keys, width):
    matrix = AccuracyMatrix(np.eye(len(keys)), buckets=keys)
    figure = pictures.draw_heatmap(matrix, None, width=width)
    assert width is None or figure.get_size_inches()[0] == pytest.approx(width)
    cell_texts = figure.axes[0].texts
    boxes = [text.get_window_extent() for text in cell_texts]
    wide, high = figure.bbox.size
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= wide and b.y1 <= high for b in boxes)
    assert not any(box.overlaps(other) for box, other in itertools.combinations(boxes, 2))
    if keys is MONTHS and (width or 9) > 6:
        assert [text.get_text() for text in cell_texts].count("2024-12") == 2


def test_truncated_labels_remain_distinct():
    middle = [f"camera {j} of the north, first half of the year" for j in range(2)]
    assert pictures.fit_labels(middle, 9, 0.65, 20) == ["…0 of t…", "…1 of t…"]
    assert pictures.fit_labels(["the same 1", "the same 2"], 9, 2, 6) == ["…ame 1", "…ame 2"]
    assert pictures.fit_labels(["photo", "painting"], 9, 0.45, 20) == ["photo", "paint…"]


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_the_diagonal_is_visible_on_every_colour(value):
    figure = pictures.draw_heatmap(AccuracyMatrix(np.full((6, 6), value)), None)
    outlines = [part for part in figure.axes[0].patches if not part.get_fill()]
    assert len(outlines) == 6
    picture = pictures.decode_png(pictures.encode_png(figure)).astype(int)
    for outline in outlines:
        box = outline.get_window_extent()
        across = picture[int(picture.shape[0] - box.y0 - 10), int(box.x0) - 3 : int(box.x0) + 5]
        unlike = np.abs(across - across[-1]).sum(axis=1)  # the last one is in the cell
        assert unlike[:3].min() < 10
        assert unlike[2:].max() > 150


@pytest.mark.parametrize("size", [10, 40])
def test_small_cells_have_their_colour(size):
    figure = pictures.draw_heatmap(AccuracyMatrix(np.full((size, size), 0.0)), None, width=3.3)
    dark = (pictures.decode_png(pictures.encode_png(figure)).max(axis=2) < 120).sum()
    cells = 120**2 * (3.3 - 0.9 - 0.85) ** 2
    assert dark > 0.75 * cells


def test_a_users_matplotlib_settings_change_nothing():
    before = pictures.draw_heatmap_png(TEN, "$run$")
    settings = {"savefig.bbox": "tight", "savefig.dpi": 30, "savefig.transparent": True}
    settings |= {"image.origin": "lower", "figure.autolayout": True}
    settings |= {"font.family": "serif", "text.usetex": True}
    with mpl.rc_context(settings):
        assert pictures.draw_heatmap_png(TEN, "$run$") == before
