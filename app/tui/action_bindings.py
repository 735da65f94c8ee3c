"""The action table as Textual bindings. The method behind the action `stop` is `action_stop` of whoever binds it."""

from textual.binding import Binding, BindingType

from app.actions import BY_ID, Scope, of_scope


def binding(action_id: str, *, priority: bool = False, show: bool = False) -> Binding:
    """The binding of one action; its id is the name by which the keymap of the settings moves it.

    `priority` hears the key before the focused widget does.
    """
    action = BY_ID[action_id]
    return Binding(
        ",".join(action.keys),
        action.id,
        action.title,
        show=show,
        priority=priority,
        tooltip=action.help,
        id=action.id,
    )


def bindings_of(*scopes: Scope, leave_out: tuple[str, ...] = ()) -> list[BindingType]:
    """The bindings of every action of `scopes` that has a key."""
    return [
        binding(action.id)
        for scope in scopes
        for action in of_scope(scope)
        if action.keys and action.id not in leave_out
    ]
