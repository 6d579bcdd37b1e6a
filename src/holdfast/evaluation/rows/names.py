"""Makes readable random ids, such as `quiet-harbor-402913`."""

import os
import random

_FIRST = (
    "able amber ancient bold brave bright brisk calm candid careful clear clever cold copper coral "
    "crisp curious daring deep distant eager early earnest fair faint fierce final fleet fond "
    "frosty gentle glad golden grand green happy hardy hidden hollow honest humble icy idle "
    "jolly keen kind late lively lone loud lucid lunar merry mild misty modest narrow neat "
    "noble odd open pale patient plain polar proud quick quiet rapid rare ready rustic salty "
    "sharp shy silent silver simple slow smooth solar solid steady stern still sturdy subtle "
    "sunny swift tall tame tidy tiny vast warm wary wild wise young"
)
_SECOND = (
    "anchor atlas bay beacon birch bloom boat breeze bridge brook canyon cape cedar channel cliff "
    "cloud coast comet cove creek current dawn delta dune dusk echo ember falls fern field fjord "
    "flame flood fog forest gale garden glade glen grove gulf harbor haven hill inlet island "
    "lagoon lake lantern leaf ledge marsh meadow mesa mist moon moss mountain oak ocean orchard "
    "peak pebble pier pine plain pond rain reef ridge river rock sail sand sea shell shoal shore "
    "sky snow spring star stone storm stream summit sun surf swell thicket tide trail valley wave "
    "wharf willow wind wood"
)
_WORD_LISTS = [line.split() for line in (_FIRST, _SECOND)]


def generate_id(separator: str = "-", seed: int | None = None, index: int | None = None) -> str:
    """Returns a new id. With a seed, the same index always gives the same id."""
    if seed is None:
        # One draw for all ids, because every row of a data set needs several.
        drawn = _RANDOM.getrandbits(64)
        first, second = _WORD_LISTS
        adjective, noun = first[(drawn >> 20) % len(first)], second[(drawn >> 40) % len(second)]
        return f"{adjective}{separator}{noun}{separator}{drawn % 1_000_000:06d}"
    source = random.Random(f"{seed} {index}")
    number = source.randrange(1_000_000)
    return separator.join((*(source.choice(line) for line in _WORD_LISTS), f"{number:06d}"))


_RANDOM = random.Random()
"""A separate random generator, so that a program that seeds `random` still gets new ids."""


def invocation_id() -> str | None:
    """Returns eval-protocol's name of the session (EP_INVOCATION_ID), if it is set."""
    return os.environ.get("EP_INVOCATION_ID") or None
