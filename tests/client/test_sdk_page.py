"""The page about the SDK names every setting with its default, values and meaning as the code has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog import aio
from tidelog.client.config.admin import ADMIN_DEFINITION
from tidelog.client.config.consumer import CONSUMER_DEFINITION
from tidelog.client.config.producer import PRODUCER_DEFINITION
from tidelog.model.settings.config_def import ConfigDef

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sdk.md").read_text(encoding="utf-8")


def rows(definition: ConfigDef) -> list[str]:
    out = []
    for name, setting in definition.settings.items():
        default = setting.format(setting.default)
        shown = f"`{default}`" if default else "empty"
        values = setting.expectation().replace("|", "\\|")
        out.append(f"| `{name.replace('.', '_')}` | {shown} | {values} | {setting.doc} |")
    return out


@pytest.mark.parametrize(
    ("heading", "definition"),
    [
        ("## Producing", PRODUCER_DEFINITION),
        ("## Consuming", CONSUMER_DEFINITION),
        ("## Administering", ADMIN_DEFINITION),
    ],
)
def test_the_tables_of_settings_are_true(heading: str, definition: ConfigDef) -> None:
    section = PAGE.split(heading, 1)[1].split("\n## ", 1)[0]
    found = [line for line in section.splitlines() if line.startswith("| `") and line.count(" | ") >= 3]
    assert found == rows(definition)


def test_both_forms_offer_the_same_names() -> None:
    import tidelog

    assert aio.__all__ == tidelog.__all__
    for name in tidelog.__all__:
        assert getattr(tidelog, name) is not None
        assert getattr(aio, name) is not None
    for name in ("Producer", "Consumer", "Admin"):
        blocking, asynchronous = getattr(tidelog, name), getattr(aio, name)
        ours = {n for n in dir(blocking) if not n.startswith("_")}
        theirs = {n for n in dir(asynchronous) if not n.startswith("_")} - {"start"}
        assert ours == theirs
    with pytest.raises(AttributeError, match="no attribute 'Prducer'"):
        _ = tidelog.Prducer
    with pytest.raises(AttributeError, match="no attribute 'Prducer'"):
        _ = aio.Prducer
    assert "Producer" in dir(tidelog)
    assert "Producer" in dir(aio)


def test_importing_the_package_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    program = "import sys, tidelog, tidelog.aio; print([m for m in ('grpc', 'asyncio', 'google') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert out.stdout.strip() == "[]"
