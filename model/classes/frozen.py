"""``dataclass`` for frozen classes with slots, made several times faster than the standard library makes them.

A node has some 400 of these classes, and half of its imports went into compiling six methods for each. Here only
``__init__`` is compiled. It also sets fields faster, through their slots. Everything else that a dataclass offers
(``fields``, ``replace``, ``asdict``, ``match``, pickling, inheritance) works as usual. Type checkers see the standard
decorator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(cls=None, /, **options):
        """Like :func:`dataclasses.dataclass`; quicker for ``frozen=True, slots=True`` (and ``kw_only``)."""
        if cls is not None:
            return dataclasses.dataclass(cls, **options)
        if not (options.get("frozen") and options.get("slots")) or options.keys() - {"frozen", "slots", "kw_only"}:
            return dataclasses.dataclass(**options)
        return lambda made: _made(made, options)

    def _made(cls, options):
        if any(base.__dataclass_params__.frozen for base in cls.__mro__[1:] if hasattr(base, "__dataclass_params__")):
            return dataclasses.dataclass(cls, **options)  # the standard library does not mix the two
        own = cls.__dict__
        kept = {name for name in ("__init__", "__eq__", "__repr__", "__getstate__", "__setstate__") if name in own}
        if "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own):
            kept.add("__hash__")  # a class with __eq__ alone has None there
        described = cls.__doc__
        cls.__doc__ = described or cls.__name__  # or the standard library derives a signature, which takes long
        cls = dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=True, kw_only=options.get("kw_only", False)
        )(cls)
        cls.__doc__ = described
        fields = dataclasses.fields(cls)
        hashed = [each.name for each in fields if (each.compare if each.hash is None else each.hash)]
        made = {
            **_SHARED,
            "__eq__": _eq(_getter([each.name for each in fields if each.compare])),
            "__hash__": _hash(_getter(hashed)),
        }
        for name in made.keys() - kept:
            setattr(cls, name, made[name])
        if "__init__" not in kept:
            cls.__init__ = _init(cls, fields)
        return cls

    def _getter(names):
        """Return a function from an object to the tuple of these fields."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda found: tuple(getattr(found, name) for name in names)

    def _init(cls, fields):
        names = {"_new": dataclasses._HAS_DEFAULT_FACTORY}
        positional, by_name, body = [], [], []
        defaulted = None
        for each in fields:
            name, value = each.name, each.name
            names[f"_set_{name}"] = getattr(cls, name).__set__
            parameter = name
            if each.default is not dataclasses.MISSING:
                names[f"_default_{name}"] = each.default
                parameter = f"{name}=_default_{name}"
            elif each.default_factory is not dataclasses.MISSING:
                names[f"_make_{name}"] = each.default_factory
                parameter = f"{name}=_new"
                value = f"_make_{name}() if {name} is _new else {name}"
            if not each.init:
                if parameter == name:
                    continue
                value = f"_default_{name}" if each.default is not dataclasses.MISSING else f"_make_{name}()"
            elif each.kw_only:
                by_name.append(parameter)
            else:
                if parameter != name:
                    defaulted = name
                elif defaulted is not None:
                    raise TypeError(f"non-default argument {name!r} follows default argument {defaulted!r}")
                positional.append(parameter)
            body.append(f" _set_{name}(self,{value})")
        if hasattr(cls, "__post_init__"):
            body.append(" self.__post_init__()")
        star = ["*", *by_name] if by_name else []
        text = f"def __init__(self,{','.join([*positional, *star])}):\n" + ("\n".join(body) or " pass")
        exec(text, names)
        made = names["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        made.__module__ = cls.__module__
        made.__annotations__ = {each.name: each.type for each in fields if each.init} | {"return": None}
        return made

    def _eq(compared):
        def eq(self, other):
            if other.__class__ is self.__class__:
                return compared(self) == compared(other)
            return NotImplemented

        return eq

    def _hash(hashed):
        return lambda self: hash(hashed(self))

    @recursive_repr()
    def _repr(self):
        shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
        return f"{self.__class__.__qualname__}({shown})"

    def _setattr(self, name, value):
        if _is_frozen(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def _delattr(self, name):
        if _is_frozen(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def _is_frozen(self, name):
        return "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__

    def _getstate(self):
        return [getattr(self, each.name) for each in dataclasses.fields(self)]

    def _setstate(self, state):
        for each, value in zip(dataclasses.fields(self), state, strict=False):
            object.__setattr__(self, each.name, value)

    _SHARED = {
        "__repr__": _repr,
        "__setattr__": _setattr,
        "__delattr__": _delattr,
        "__getstate__": _getstate,
        "__setstate__": _setstate,
    }
