"""A document: what a view shows, made from files when somebody looks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from prism_prm import __version__
from prism_prm.paths import own_name, split_name
from prism_prm.report import plain_json

T = TypeVar("T")

FEW, MANY = 4, 256
"""Files to keep in memory: whole ones, and the little of each that every listing needs."""

_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""What could end or change a block of JSON within HTML, as JSON may write it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Results on disk, and the name that they are shown under."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Results:
    """The places that are shown together, and what their texts are read from."""

    places: tuple[Place, ...]
    data: tuple[str, ...] = ()
    """Files of the benchmark, or the solutions that were scored; by default those that the results name."""
    split: str | None = None
    """For labelled data and pairs: the split that was measured."""

    @classmethod
    def named(cls, given: Sequence[str | Path], data: Sequence[str] = (), split: str | None = None) -> Results:
        """Places given as `PLACE` or `NAME=PLACE`."""
        pairs = [split_name(str(one)) for one in given]
        places = [Place(name or own_name(path).removesuffix(".parquet"), Path(path)) for name, path in pairs]
        return cls(tuple(places), tuple(data), split)

    def id_of(self, place: Place, key: str = "") -> str:
        """The id of a place's document, which stays the same while results grow."""
        number = self.places.index(place)
        return f"{number}-{key}" if key else str(number)


@dataclass(frozen=True, slots=True)
class Document:
    """Something to look at."""

    kind: str
    """The view that shows it."""
    title: str
    body: Callable[[], Mapping[str, Any]]
    """Makes what the view is given; called only when somebody looks."""
    files: tuple[Path, ...] = ()
    """What it is made from: when one of them changes, the document does."""
    note: str = ""
    """What else to know, in a line under the title."""
    key: str = ""
    """Tells it from other documents of its place; "" for the only one."""
    listed: bool = True
    """Whether people choose it by its title; views may load others by their id."""

    def stamp(self) -> str:
        """Changes whenever one of the files does."""
        digest = hashlib.sha256(__version__.encode())
        for file in self.files:
            try:
                found = file.stat()
                state = f"{found.st_mtime_ns} {found.st_size}"
            except OSError:
                state = "gone"
            digest.update(f"{file}: {state}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:32]


def kept_until_changed(most: int, missing: Any = None) -> Callable[[Callable[[Path], T]], Callable[[Path], T]]:
    """A function of a file, which reads it again only when it has changed; what `most` files hold is kept.

    With `missing`, that is the result for a file that does not exist.
    """

    def keep(read: Callable[[Path], T]) -> Callable[[Path], T]:
        known = lru_cache(maxsize=most)(lambda path, *_state: read(path))

        def find(path: Path) -> T:
            if missing is not None and not path.is_file():
                return cast(T, missing)
            state = path.stat()
            return known(path, state.st_mtime_ns, state.st_size)

        return find

    return keep


def encode(value: Any) -> bytes:
    """JSON in ASCII, where nothing means anything to HTML: line separators and lone surrogates are escaped, too."""
    return json.dumps(plain_json(value), allow_nan=False, separators=(",", ":")).translate(_HTML).encode("ascii")
