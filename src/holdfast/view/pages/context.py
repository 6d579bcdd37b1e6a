"""The objects that every page needs: the journal, the digests, and the names of pages."""

from aiohttp import web
from msgspec import Struct

from holdfast.engine.export.prices import Prices
from holdfast.records.run import ForkOrigin, Run, RunSpec
from holdfast.records.trajectory import TrajectoryKey
from holdfast.view.reading.columns import Columns
from holdfast.view.reading.digest import RunDigest
from holdfast.view.reading.digests import Digests
from holdfast.view.reading.numbers import Numbers, numbers_of
from holdfast.view.reading.tokens import Decode, decoder_of
from holdfast.view.rendering import render
from holdfast.view.source import ShownJournal


class Context(Struct):
    """The objects that all pages of a server share."""

    source: ShownJournal
    digests: Digests
    columns: Columns
    prices: Prices | None = None
    tokenizer: str | None = None
    token_file: str = ""
    """The file with the token that actions need."""
    decoders: dict[str, Decode | None] = {}
    counted: dict[int, tuple[RunDigest, int, Numbers]] = {}
    origins: dict[tuple[str, float], ForkOrigin | None] = {}
    """The origin of each run, by its name and the time of its creation."""

    def decoder(self, spec: RunSpec) -> Decode | None:
        """Returns a function that decodes the tokens of a run, or None if no tokenizer is
        available. The function is made once for each renderer."""
        if spec.renderer not in self.decoders:
            self.decoders[spec.renderer] = decoder_of(spec, self.tokenizer)
        return self.decoders[spec.renderer]

    def numbers(self, run: Run, digest: RunDigest) -> Numbers:
        """Returns the numbers of a digest. They are computed once for each version of the
        digest."""
        known = self.counted.get(run.id)
        if known is None or known[0] is not digest or known[1] != digest.version:
            known = (digest, digest.version, numbers_of(digest, self.prices))
            self.counted[run.id] = known
        return known[2]

    async def forks_of(self, key: TrajectoryKey) -> list[tuple[str, str]]:
        """Returns the runs that fork a trajectory, each with the step at which it forks. Each run
        is read once."""
        rows = await (await self.source.journal()).runs(counted=False)
        for row in rows:
            if (row.name, row.created) not in self.origins:
                self.origins[row.name, row.created] = (await self.source.run(row.name)).spec.origin
        origins = [(row.name, self.origins[row.name, row.created]) for row in rows]
        wanted = (key.run, key.task, key.sample)
        return [(n, o.step) for n, o in origins if o and (o.run, o.task, o.sample) == wanted]

    def render(self, template: str, *, title: str, topic: str = "", **values: object) -> str:
        shared = {
            "title": title,
            "topic": topic,
            "journal": self.source.name,
            "token_file": self.token_file,
            "crumbs": (),
        }
        return render(template, shared | values)


CONTEXT: web.AppKey[Context] = web.AppKey("context", Context)


def context_of(request: web.Request) -> Context:
    return request.app[CONTEXT]
