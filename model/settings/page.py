"""Writes the page of settings from their definitions: ``python -m tidelog.model.settings.page docs/settings.md``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tidelog.model.settings.broker_config import DEVIATIONS, NODE_CONFIG_DEF, OWN_SETTINGS
from tidelog.model.settings.config_def import ConfigDef, Setting, Update
from tidelog.model.settings.topic_config import BROKER_SYNONYMS, TOPIC_CONFIG_DEF

_HEAD = """\
# Settings

Names, meanings and defaults are Apache Kafka's (4.x). Sizes are bytes, durations milliseconds, unless a name says
otherwise. Where a default differs on purpose, "not Kafka's" says why. Settings that Kafka does not have are marked
"own". A node refuses any other name and suggests the nearest one here: it never reads a setting and then ignores it.

`python -m tidelog.model.settings.page docs/settings.md` writes this page.
"""


def settings_page() -> str:
    """Return the page."""
    return "\n".join((_HEAD, *_nodes(), *_topics())) + "\n"


def _nodes() -> Iterator[str]:
    yield "## A node\n"
    yield "Set these in the file that `tidelog server --config` reads. You can also change those marked *dynamic* at"
    yield "run time, for one broker or for all of them.\n"
    yield from _table(NODE_CONFIG_DEF, _node_notes)
    yield ""


def _topics() -> Iterator[str]:
    yield "## A topic\n"
    yield "Set these when you create a topic, or change them at run time. The broker's defaults cover the rest.\n"
    yield from _table(TOPIC_CONFIG_DEF, _default_note)


def _default_note(setting: Setting) -> str:
    broker = BROKER_SYNONYMS.get(setting.name)
    return "" if broker is None else f"broker's default: `{broker}`"


def _table(definition: ConfigDef, notes: Callable[[Setting], str]) -> Iterator[str]:
    yield "| setting | default | takes | what it does | |"
    yield "|---|---|---|---|---|"
    for name in sorted(definition.settings):
        setting = definition.settings[name]
        default = setting.format(setting.default)
        shown = f"`{default}`" if default else "–"
        takes = "addresses or names" if setting.read is not None else setting.expectation().replace("|", "\\|")
        yield f"| `{name}` | {shown} | {takes} | {setting.doc} | {notes(setting)} |"


def _node_notes(setting: Setting) -> str:
    notes = []
    if setting.required:
        notes.append("required")
    if setting.update is not Update.READ_ONLY:
        notes.append("dynamic")
    if setting.name in OWN_SETTINGS:
        notes.append("own")
    if setting.name in DEVIATIONS:
        notes.append(f"not Kafka's: {DEVIATIONS[setting.name]}")
    return "; ".join(notes)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(settings_page(), encoding="utf-8")
