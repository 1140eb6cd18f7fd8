"""pytest's hooks and nothing else; without --preflight the plugin is inert.

Imports the standard library, pytest and the options' declarations only: every pytest run of an
environment loads this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec, PathFinder

import pytest

from preflight.session.flags import add_options, usage_errors


class _PlainImporter:
    """Loads preflight's own modules as Python does: from the .pyc that the installation made.

    pytest rewrites the asserts of plugins. There are none here, and an account that cannot write
    to the installation would rewrite 260 modules at every start.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _: object = None, /) -> ModuleSpec | None:
        """Leave all other modules to the next finder."""
        return PathFinder.find_spec(name, path) if name.startswith("preflight.") else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the options; all of them start with --preflight."""
    add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Refuse other users' conftest and ini files before root runs them; set up a rank's role."""
    if early_config.known_args_namespace.preflight:
        sys.meta_path.insert(0, _PlainImporter)
        from preflight.session.site import refuse_other_settings, refuse_untrusted_code

        with usage_errors():
            refuse_other_settings(early_config)
            refuse_untrusted_code(early_config)
            if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("RANK"):
                from preflight.session.ranks import rank_plugin

                early_config.pluginmanager.register(rank_plugin(os.environ), "preflight-rank")
    else:
        _refuse_options_alone(early_config)
    yield
    _refuse_unknown(early_config)


def _refuse_options_alone(config: pytest.Config) -> None:
    """Refuse our options without --preflight: exit 0 of the user's tests would look like a pass.

    In an ini file, `addopts` or PYTEST_ADDOPTS they have no effect.
    """
    for word in map(str, config.invocation_params.args):
        if word.startswith("--preflight-"):
            from preflight.core.text import printable

            raise pytest.UsageError(  # noqa: TID251  its text is made printable here
                f"{printable(word.partition('=')[0])} without --preflight checks nothing; "
                "add --preflight"
            )


def _refuse_unknown(config: pytest.Config) -> None:
    """Name the nearest option for a misspelled one of ours; pytest prints only its usage."""
    words = [word.partition("=")[0] for word in map(str, config.invocation_params.args)]
    groups = config._parser._groups  # noqa: SLF001  pytest offers no other way
    names = {name for group in groups for option in group.options for name in option.names()}
    unknown = [word for word in words if word.startswith("--preflight") and word not in names]
    if unknown:
        from preflight.core.command_line import unknown_option
        from preflight.errors import UsageError

        with usage_errors():
            raise UsageError(unknown_option(unknown[0], [*names]))


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks for a site's plugins: preflight.session.flags."""
    from preflight.session import flags

    pluginmanager.add_hookspecs(flags)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the session if --preflight is given."""
    config.addinivalue_line("markers", "preflight: an item that preflight made")
    for stage in ("reach", "facts", "net", "local", "fabric"):
        line = f"preflight_{stage}: an item of the stage {stage}, for -m"
        config.addinivalue_line("markers", line)
    if config.getoption("preflight"):
        from preflight.session.session import start

        with usage_errors():
            session, collector = start(config)
        config.pluginmanager.register(session, "preflight-session")
        config.pluginmanager.register(collector, "preflight-verdicts")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Collect the checks, unless the operator named paths."""
    if config.getoption("preflight") and config.args_source is not config.ArgsSource.ARGS:
        from preflight.core.registry import shipped_folder

        config.args = [str(shipped_folder()), *map(str, config.getini("preflight_checks"))]
