"""The rewritten plan as a :class:`PlanPicture`: equal plans give equal pictures."""

from __future__ import annotations

from airflow_trident.plan.graph import Node, ordered
from airflow_trident.plan.nodes import PartitionNode, PersistNode, SourceNode
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.plan_picture import BoxKind, PlanBox, PlanPicture

MOST_BOXES = 200
MOST_CHARACTERS = 300
"""The most characters in a box; ``airflow trident plan`` shows the rest."""


def picture_of(plan: Plan) -> PlanPicture:
    """What runs, from spouts to states; what follows from the new values of a state comes after that state."""
    nodes = ordered(plan.rewritten)
    boxes = tuple(map(_box, nodes[:MOST_BOXES]))
    return PlanPicture(digest=plan.digest, boxes=boxes, left_out=len(nodes) - len(boxes))


def _box(node: Node) -> PlanBox:
    what = node.state.factory.describe() if isinstance(node, PersistNode) else node.what
    return PlanBox(
        name=_name(node),
        kind=_kind(node),
        what=what[:MOST_CHARACTERS],
        inputs=tuple(dict.fromkeys(map(_name, node.inputs))),
    )


def _name(node: Node) -> str:
    """A stream and a state may have the same name."""
    return f"state {node.name}" if isinstance(node, PersistNode) else node.name


def _kind(node: Node) -> BoxKind:
    if isinstance(node, SourceNode):
        return BoxKind.SPOUT
    if isinstance(node, PersistNode):
        return BoxKind.STATE
    return BoxKind.GROUPING if isinstance(node, PartitionNode) else BoxKind.OPERATION
