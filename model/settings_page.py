"""Writes ``docs/settings.md`` from the definitions: ``python -m tidelog.model.settings_page > docs/settings.md``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from tidelog.model.broker_config import DEVIATIONS, NODE_CONFIG_DEF, OWN_SETTINGS
from tidelog.model.config_def import ConfigDef, Setting, Update
from tidelog.model.topic_config import BROKER_SYNONYMS, TOPIC_CONFIG_DEF

_HEAD = """\
# Settings

Names, meanings and defaults are Apache Kafka's (4.x). Sizes are bytes, durations milliseconds, unless a name says
otherwise. Where a default is another one on purpose, "not Kafka's" says why; settings that Kafka does not have are
marked "own". A name that is not here is refused, with the nearest one that is: no setting is read and then ignored.

This page is written by `python -m tidelog.model.settings_page`.
"""


def settings_page() -> str:
    """The page."""
    return "\n".join((_HEAD, *_nodes(), *_topics())) + "\n"


def _nodes() -> Iterator[str]:
    yield "## A node\n"
    yield "In the file that `tidelog server --config` reads. Those marked *dynamic* can also be changed at run time,"
    yield "for one broker or for all of them.\n"
    yield from _table(NODE_CONFIG_DEF, _node_notes)
    yield ""


def _topics() -> Iterator[str]:
    yield "## A topic\n"
    yield "Given when a topic is made, or changed at run time. What it does not set itself is the broker's default.\n"
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
    sys.stdout.write(settings_page())
