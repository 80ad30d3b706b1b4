"""What can be read in a picture, and whether it can: no two texts on each other, none cut off at the page's edge."""

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> list[str]:
    """Everything that is written in a figure."""
    return [text.get_text() for text in _drawn(figure)]


def assert_texts_are_apart_and_inside(figure: Figure) -> None:
    """Upright and turned texts; those along a slope are left out, because their boxes are larger than they."""
    page = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in _drawn(figure) if text.get_rotation() in (0, 90)]
    for name, box in boxes:
        assert page.x0 <= box.x0, name
        assert box.x1 <= page.x1, name
        assert page.y0 <= box.y0, name
        assert box.y1 <= page.y1, name
    for index, (name, box) in enumerate(boxes):
        for other, second in boxes[index + 1 :]:
            # A pixel of slack: boxes include the space above capitals.
            overlap_x = min(box.x1, second.x1) - max(box.x0, second.x0)
            overlap_y = min(box.y1, second.y1) - max(box.y0, second.y0)
            assert overlap_x <= 1 or overlap_y <= 1, f"{name!r} and {other!r}"


def _drawn(figure: Figure) -> list[Text]:
    figure.canvas.draw()
    beyond = {id(text) for axes in figure.axes for text in _beyond(axes)}
    found = figure.findobj(mpl.text.Text)
    return [text for text in found if text.get_text().strip() and text.get_visible() and id(text) not in beyond]


def _beyond(axes: Axes) -> list[Text]:
    """Labels of ticks outside the axis, which exist and are not drawn."""
    labels = [(text, text.get_position()[0], sorted(axes.get_xlim())) for text in axes.get_xticklabels()]
    labels += [(text, text.get_position()[1], sorted(axes.get_ylim())) for text in axes.get_yticklabels()]
    return [text for text, place, (low, high) in labels if not axes.axison or not low <= place <= high]
