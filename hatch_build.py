"""Builds the loader's C part while the package is installed or a wheel is made; goes on without it where there is no compiler."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles `loader/native`; a wheel with it is for this platform, one without it for all."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        del version
        build = _module(Path(self.root) / "loader/native/build.py")
        try:
            library = build.build()
        except build.NotBuilt as error:
            self.app.display_warning(
                f"the loader's C part is left out, loads to GPUs will be slower: {error}"
            )
            return
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _module(path: Path) -> ModuleType:
    """One file as a module, without the package around it, whose dependencies aren't there yet."""
    spec = importlib.util.spec_from_file_location("emberpool_native_build", path)
    if spec is None or spec.loader is None:
        sys.exit(f"error: {path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
