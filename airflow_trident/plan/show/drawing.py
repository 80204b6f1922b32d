"""The compiled plan as a picture: stages in columns by their distance from a source, with arrows from stage to
stage."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from airflow_trident.plan.graph import SinkNode
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.plan.show.trees import begin_of
from airflow_trident.plan.stages import Plan, Stage

_LETTER_PX, _LINE_PX, _PAD_PX, _GAP_X_PX, _GAP_Y_PX = 6.7, 16, 10, 150, 28
_STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#1f2937}.t{font-weight:bold}.l{fill:#6b7280}"
    "rect{fill:#f8fafc;stroke:#64748b;rx:6}.state rect{fill:#ecfdf5;stroke:#059669}"
    "path{fill:none;stroke:#64748b;marker-end:url(#a)}"
)


@dataclass(frozen=True, kw_only=True)
class _Box:
    """Pixels from the upper left corner; the first line is the title."""

    lines: tuple[str, ...]
    kind: str
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _LETTER_PX + 2 * _PAD_PX

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE_PX + 2 * _PAD_PX


def svg(plan: Plan) -> str:
    """An SVG document; the same plan gives the same text."""
    columns = _columns(plan)
    placed, width, height = _placed(columns)
    body = [_arrow(placed[begin], placed[end], label) for begin, end, label in _arrows(plan)]
    body += [_drawn(box) for box in placed.values()]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img"><title>{escape(plan.topology)}</title>'
        f"<style>{_STYLE}</style>"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#64748b;stroke:none;marker-end:none"/></marker></defs>'
    )
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _columns(plan: Plan) -> list[dict[str, _Box]]:
    columns: list[dict[str, _Box]] = []
    for title, level in _levels(plan):
        depth: dict[int, int] = {}
        begin = len(columns)
        for stage in level:
            depth[stage.index] = max((depth[upstream] + 1 for upstream in stage.upstreams), default=begin)
            while len(columns) < depth[stage.index] + 2:
                columns.append({})
            name = f"{title} {stage.index}"
            columns[depth[stage.index]][name] = _Box(lines=(name, *_lines(stage)), kind="stage")
            for sink in stage.sinks:
                columns[depth[stage.index] + 1][_end(sink)] = _sink(sink)
    return columns


def _levels(plan: Plan) -> list[tuple[str, tuple[Stage, ...]]]:
    """The stages of each level, with the beginning of their names."""
    commit = [(f"commit phase {number}, stage", level.stages) for number, level in enumerate(plan.commit, 1)]
    return [("stage", plan.stages), *commit]


def _end(sink: SinkNode) -> str:
    return f"state {sink.name}" if isinstance(sink, PersistNode) else sink.name


def _sink(sink: SinkNode) -> _Box:
    if isinstance(sink, PersistNode):
        return _Box(lines=(_end(sink), sink.state.factory.describe()), kind="state")
    return _Box(lines=(sink.name, "handed on"), kind="stage")


def _lines(stage: Stage) -> tuple[str, ...]:
    source = [begin_of(stage.source).removeprefix("read ")] if stage.source is not None else []
    begin = stage.union or stage.of_batches
    union = [f"{begin.name} {begin.what}".strip()] if begin is not None else []
    nodes = [f"{node.name} {node.what}".strip() for node in stage.nodes]
    return (*source, *union, *nodes)


def _placed(columns: list[dict[str, _Box]]) -> tuple[dict[str, _Box], float, float]:
    placed: dict[str, _Box] = {}
    x = height = float(_PAD_PX)
    for column in columns:
        y = float(_PAD_PX)
        for name, box in column.items():
            placed[name] = _Box(lines=box.lines, kind=box.kind, x=x, y=y)
            y += box.height + _GAP_Y_PX
        height = max(height, y)
        x += max((box.width for box in column.values()), default=0) + _GAP_X_PX
    return placed, max(box.x + box.width for box in placed.values()) + _PAD_PX, height


def _arrows(plan: Plan) -> list[tuple[str, str, str]]:
    arrows = []
    for title, level in _levels(plan):
        for stage in level:
            name = f"{title} {stage.index}"
            label = stage.exchange.what if stage.exchange is not None else ""
            arrows += [(f"{title} {upstream}", name, label) for upstream in stage.upstreams]
            arrows += [(name, _end(sink), "") for sink in stage.sinks]
    for number, part in enumerate(plan.commit, 1):
        begins = {stage.source.name: stage.index for stage in part.stages if stage.source is not None}
        boxes = {**{name: f"state {state}" for name, state in part.new_values.items()}, **{c: c for c in part.carried}}
        arrows += [(box, f"commit phase {number}, stage {begins[name]}", "") for name, box in boxes.items()]
    return arrows


def _arrow(begin: _Box, end: _Box, label: str) -> str:
    x1, y1 = begin.x + begin.width, begin.y + begin.height / 2
    x2, y2 = end.x, end.y + end.height / 2
    bend = max((x2 - x1) / 2, 40)
    path = f"M{x1:.0f} {y1:.0f}C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    text = ""
    if label:
        at = f'x="{(x1 + x2) / 2:.0f}" y="{(y1 + y2) / 2 - 4:.0f}"'
        text = f'<text class="l" text-anchor="middle" {at}>{escape(label)}</text>'
    return f'<path d="{path}"/>{text}'


def _drawn(box: _Box) -> str:
    rows = []
    for place, line in enumerate(box.lines):
        y = box.y + _PAD_PX + _LINE_PX * (place + 0.75)
        title = "" if place else ' class="t"'
        rows.append(f'<text x="{box.x + _PAD_PX:.0f}" y="{y:.0f}"{title}>{escape(line)}</text>')
    rect = f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"/>'
    return f'<g class="{box.kind}">{rect}{"".join(rows)}</g>'
