"""Drills: list them, show the current one, start and stop one."""

from __future__ import annotations

from typing import Any, Final

from tidelog import ClientQuotaEntity
from tidelog.console.drill_runs import Drills
from tidelog.console.pages.topics import allowed
from tidelog.console.routes import Call, Route, text_of
from tidelog.console.web.messages import Wrong
from tidelog.model.client_quotas import REQUEST_PERCENTAGE

LIVE_S: Final = 1.0


def _drills(call: Call) -> Drills:
    if call.desk.drills is None:
        raise Wrong("the console was started without --drills: a drill stops nodes' processes on its machine", 403)
    return call.desk.drills


def _check_may(call: Call) -> None:
    """Raise the cluster's error if the person may not alter the cluster. Changes nothing."""
    nobody = ClientQuotaEntity(client_id="tidelog-console-drill")
    call.desk.admin._run(
        call.desk.admin._inner.alter_client_quotas({nobody: {REQUEST_PERCENTAGE: None}}, validate_only=True)
    )


def drills(call: Call) -> dict[str, Any]:
    """Return the available drills, and the current or last one."""
    if call.desk.drills is None:
        return {"on": False, "drills": [], "held": None, "cluster": None}
    held = call.desk.drills.last
    cluster = allowed(lambda: call.desk.admin.describe_cluster().cluster_id)
    mine = held is not None and held.by == call.session.user
    return {
        "on": True,
        "drills": [{"name": name, "summary": summary} for name, summary in call.desk.drills.known()],
        "held": held.as_object() if held is not None and mine else None,
        "cluster": cluster,
    }


def start(call: Call) -> dict[str, Any]:
    """Start a drill on a cluster of its own or, if ``confirm`` is this cluster's id, on this one."""
    body, offered = call.body(), _drills(call)
    _check_may(call)
    confirm = text_of(body, "confirm") if body.get("here") else None
    if confirm is not None and confirm != call.desk.admin.describe_cluster().cluster_id:
        raise Wrong("type this cluster's id to confirm: a drill stops its nodes", 428)
    offered.start(call.names["drill"], call.session.user, confirm, call.desk.settings)
    return {}


def stop(call: Call) -> dict[str, Any]:
    offered = _drills(call)
    if offered.last is None or offered.last.by != call.session.user:
        raise Wrong("you have no running drill", 409)
    offered.stop()
    return {}


ROUTES: Final = (
    Route("GET", "/api/drills", drills, live_s=LIVE_S),
    Route("POST", "/api/drills/{drill}", start),
    Route("POST", "/api/drill-stop", stop),
)
