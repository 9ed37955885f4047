"""A module dictionary that accepts any name."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

from torch import nn


class NamedModules(nn.Module):
    """Modules by observation name, including names that torch forbids as attributes.

    `nn.ModuleDict` rejects `keys`, `type`, `pop` and names with a dot. Such a module is stored
    under another name; all others as in `nn.ModuleDict`, so that older checkpoints still load.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        taken = set(modules)
        self._held: dict[str, str] = {}
        for name, module in modules.items():
            self._held[name] = held = self._allowed(name, taken)
            taken.add(held)
            self.add_module(held, module)

    def _allowed(self, name: str, taken: set[str]) -> str:
        """Return the name a module is stored under: its own if torch allows it."""
        if name and "." not in name and not hasattr(self, name):
            return name
        free = f"obs_{name.replace('.', '_')}"
        while free in taken:
            free += "_"
        return free

    def _by_name(self) -> dict[str, nn.Module]:
        return {name: self.get_submodule(held) for name, held in self._held.items()}

    def __getitem__(self, name: str) -> nn.Module:
        return self.get_submodule(self._held[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def state_names(self) -> list[str]:
        """Return the names in the state dict."""
        return list(self._held.values())

    def keys(self) -> KeysView[str]:
        """Return the original names."""
        return self._held.keys()

    def values(self) -> ValuesView[nn.Module]:
        """Return the modules."""
        return self._by_name().values()

    def items(self) -> ItemsView[str, nn.Module]:
        """Return names and modules."""
        return self._by_name().items()
