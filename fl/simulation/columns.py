"""Mappings and sequences by client, in some bytes a client: a report of 100,000 clients is kept, and there are many.

A virtual client is its partition, a number, and its id is `uuid.UUID(int=partition)`. Pure.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

Value = TypeVar("Value")


class Ids(Sequence[uuid.UUID]):
    """The ids of some virtual clients."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self.partitions = array("q", partitions)

    @overload
    def __getitem__(self, index: int) -> uuid.UUID: ...
    @overload
    def __getitem__(self, index: slice) -> Ids: ...
    def __getitem__(self, index: int | slice) -> uuid.UUID | Ids:
        if isinstance(index, slice):
            return Ids(self.partitions[index])
        return uuid.UUID(int=self.partitions[index])

    def __len__(self) -> int:
        return len(self.partitions)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids):
            return self.partitions == other.partitions
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


class ByClient(Mapping[uuid.UUID, Value], Generic[Value]):
    """Values by client. values: as many as ids, in their order."""

    def __init__(self, ids: Ids, values: Sequence[Value]) -> None:
        self._ids = ids
        self._values = values
        self._places: dict[int, int] | None = None  # made by the first look-up

    def __getitem__(self, id: uuid.UUID) -> Value:
        if self._places is None:
            self._places = {partition: place for place, partition in enumerate(self._ids.partitions)}
        place = self._places.get(id.int) if isinstance(id, uuid.UUID) else None
        if place is None:
            raise KeyError(id)
        return self._values[place]

    def __iter__(self) -> Iterator[uuid.UUID]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return repr(dict(self))


class Metrics(Sequence[Mapping[str, Any]]):
    """The metrics of clients. Numbers that all of them have are columns, 8 bytes each; all else is kept as it is."""

    def __init__(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        first = metrics[0] if metrics else {}
        names = [name for name in first if all(type(each.get(name)) is float for each in metrics)]
        self._columns = {name: np.array([each[name] for each in metrics]) for name in names}
        self._size = len(metrics)
        others = [{name: value for name, value in each.items() if name not in self._columns} for each in metrics]
        self._others = others if any(others) else None

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        found = {name: float(column[index]) for name, column in self._columns.items()}
        return found if self._others is None else {**found, **self._others[index]}

    def __len__(self) -> int:
        return self._size
