"""The pictures: what is drawn is what the reports and the files say."""

from __future__ import annotations

import base64
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.callbacks import plots
from fl.callbacks.jsonl import JsonLines
from fl.simulation.simulate import Result
from netq.text import printable
from tests.fl.aggregation.test_update_store import disk_of
from tests.fl.callbacks.test_names import METRICS
from tests.fl.federation import A, zeros

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the fonts open that it has drawn with; no test is to blame for that."""
    out = tmp_path_factory.mktemp("fonts") / "first.png"
    with warnings.catch_warnings(action="ignore"):  # no font has all glyphs
        plots.rounds({"run": reports(0.5, metrics=METRICS)}, metric="准确率", out=out)


def reports(*accuracies: float, **changes: Any) -> list[fl.RoundReport]:
    return [
        fl.RoundReport(
            **{
                "number": number,
                "clients": (A,),
                "failures": {},
                "metrics": {"loss": 1 - accuracy},
                "evaluation": {"accuracy": accuracy},
                "seconds": 1.0,
                "bytes_in": 10**6 * number,
                "bytes_out": 2 * 10**6,
                **changes,
            }
        )
        for number, accuracy in enumerate(accuracies, 1)
    ]


def drawn(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def test_run_is_drawn_with_metric_and_bytes() -> None:
    upper, lower = plots.rounds({"run": reports(0.5, 0.75)}).axes
    assert upper.get_ylabel() == "accuracy"
    assert drawn(upper) == [([1, 2], [0.5, 0.75])]
    assert drawn(lower) == [([1, 2], [1.0, 2.0]), ([1, 2], [2.0, 2.0])]
    assert upper.get_legend() is None


def test_time_is_the_sum_of_all_rounds_and_void_ones() -> None:
    run = reports(0.5, 0.75, 0.8, seconds=2.5)
    upper, lower = plots.rounds({"run": run}, by="seconds").axes
    assert drawn(upper) == [([2.5, 5, 7.5], [0.5, 0.75, 0.8])]
    assert lower.get_xlabel() == "time in seconds"
    with pytest.raises(ValueError, match="by: 'hours'; expected round or seconds"):
        plots.rounds({"run": run}, by="hours")


def test_reports_and_json_lines_are_drawn_together(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    for report in reports(0.25, 0.5, 0.75):
        JsonLines(path).round_ends(report, zeros())
    upper, lower = plots.rounds({"adam": path, "plain": reports(0.5)}, metric="loss").axes
    assert drawn(upper) == [([1, 2, 3], [0.75, 0.5, 0.25]), ([1], [0.5])]
    legend: Any = upper.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["adam", "plain"]
    assert [line.get_color() for line in lower.get_lines()] == ["C0", "C0", "C1", "C1"]


def test_a_line_has_one_quantity_where_an_evaluation_failed() -> None:
    run = [*reports(0.5, 0.6), *reports(0.0, 0.0, 0.0, evaluation={}, metrics={"accuracy": 0.99})[2:]]
    assert drawn(plots.rounds({"run": run}, metric="accuracy").axes[0]) == [([1, 2], [0.5, 0.6])]


def test_an_array_is_not_drawn() -> None:
    run = [
        *reports(0.5, evaluation={"confusion": np.eye(2), "f1": 0.75}),
        *reports(0, 0, evaluation={"f1": np.eye(1)})[1:],
    ]
    upper = plots.rounds({"run": run}).axes[0]
    assert upper.get_ylabel() == "f1"
    assert drawn(upper) == [([1], [0.75])]
    with pytest.raises(ValueError, match="has the metric 'confusion'; those there are: f1, loss"):
        plots.rounds({"run": run}, metric="confusion")


def test_round_without_the_metric_is_left_out() -> None:
    run = [*reports(0.5), *reports(0.0, 0.0, metrics={}, evaluation={})[1:], *reports(0, 0, 0.75)[2:]]
    assert drawn(plots.rounds({"run": run}).axes[0]) == [([1, 3], [0.5, 0.75])]


def test_result_of_a_simulation_is_drawn_with_what_was_measured() -> None:
    def train(model: Any, config: Any) -> fl.Update:
        return fl.Update({"w": model["w"] + 1}, 1)

    def measure(model: Any) -> dict[str, Any]:
        return {"w": model["w"][0], "text": "of no use here"}

    result = fl.simulate(zeros(), [train] * 2, 3, measure=measure, devices=fl.Devices(2))
    figure = plots.rounds({"run": result}, metric="server_w", by="seconds")
    assert drawn(figure.axes[0]) == [([2, 4, 6], [1, 2, 3])]
    assert result.reports[0].evaluation == {"server_w": 1}


@pytest.mark.parametrize(("suffix", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_format_follows_the_suffix(tmp_path: Path, suffix: str, head: bytes) -> None:
    out = tmp_path / f"rounds.{suffix}"
    plots.rounds({"run": reports(0.5)}, out=out)
    assert out.read_bytes().startswith(head)


@pytest.fixture
def draw() -> Callable[[Any], None]:
    """Draw a text; that is when matplotlib reads markup, and raises if it is wrong."""
    from matplotlib.backends.backend_agg import RendererAgg

    renderer = RendererAgg(700, 600, 100)  # type: ignore[no-untyped-call]
    return lambda text: text.draw(renderer)


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_of_runs_are_drawn_as_they_are(draw: Callable[[Any], None]) -> None:
    legend: Any = plots.rounds(dict.fromkeys(METRICS, reports(0.5))).axes[0].get_legend()
    for text, name in zip(legend.get_texts(), METRICS, strict=True):
        assert text.get_text() == name
        draw(text)


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_of_metrics_are_drawn_as_they_are(draw: Callable[[Any], None]) -> None:
    run = reports(0.5, metrics=METRICS)
    for name, value in METRICS.items():
        upper = plots.rounds({"run": run}, metric=name).axes[0]
        assert upper.get_ylabel() == printable(name)
        assert drawn(upper)[0] == ([1], [0.5 if name == "accuracy" else value])
        draw(upper.yaxis.label)


def test_full_disk_leaves_the_picture_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "rounds.png"
    plots.rounds({"run": reports(0.5)}, out=out)
    before = out.read_bytes()
    with disk_of(1000), pytest.raises(OSError, match="too large"):
        plots.rounds({"run": reports(0.5, 0.75)}, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.png"]
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("runs", "metric", "text"),
    [
        ({"a": reports(0.5)}, "f1", "no round of a has the metric 'f1'; those there are: accuracy, loss"),
        ({"a": [], "b": []}, None, "no round of a, b has a metric; there is none"),
        ({"a": []}, "f1", "no round of a has the metric 'f1'; there is none"),
    ],
)
def test_unknown_metric_is_reported(runs: dict[str, Any], metric: str | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        plots.rounds(runs, metric=metric)


def test_missing_folder_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plots.rounds({"run": reports(0.5)}, out=tmp_path / "pictures" / "rounds.png")
    assert list(tmp_path.iterdir()) == []


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plots.rounds({"run": tmp_path / "none.jsonl"})


def test_missing_matplotlib_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"fl\.callbacks\.plots needs matplotlib .*: pip install matplotlib"):
        plots.rounds({"run": reports(0.5)})


def test_missing_file_is_reported_before_missing_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FileNotFoundError):
        plots.rounds({"run": tmp_path / "none.jsonl"})


def test_result_of_a_simulation_is_a_picture_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(zeros(), reports(0.5, 0.6), [], 3)
    shown = result._repr_html_()
    assert shown is not None
    assert shown.startswith("<pre>&lt;Result: 2 rounds, ")
    _, _, picture = shown.partition('src="data:image/png;base64,')
    assert base64.b64decode(picture.rstrip('">')).startswith(b"\x89PNG")
    assert Result(zeros(), [], [], 3)._repr_html_() is None  # nothing to draw
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert result._repr_html_() is None
