"""Providers: the providers of worlds by name, each opened once in a process."""

from holdfast.worlds.contract.world import WorldProvider


class Providers:
    """Opens a provider when it is first needed, and closes all of them together."""

    def __init__(self) -> None:
        self._open: dict[str, WorldProvider] = {}

    def of(self, name: str) -> WorldProvider:
        """Returns the provider with this name, such as `docker`."""
        if name not in self._open:
            # Imported late, because it imports an HTTP client.
            from holdfast.worlds.docker.provider import ContainerProvider

            self._open[name] = ContainerProvider(name)
        return self._open[name]

    @property
    def names(self) -> list[str]:
        """The names of the open providers."""
        return list(self._open)

    async def close(self) -> None:
        for provider in self._open.values():
            await provider.close()
        self._open.clear()
