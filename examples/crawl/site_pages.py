"""A small site, as its pages would come from a web server: path -> HTML. Some links lead out of it, or to no page."""


def _page(title: str, *links: str) -> str:
    """A page with links to these addresses."""
    anchors = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return f"<html><head><title>{title}</title></head><body><h1>{title}</h1><ul>{anchors}</ul></body></html>"


PAGES: dict[str, str] = {
    "/": _page("The lighthouse of Arkona", "/history", "/visit", "/birds", "https://example.org/"),
    "/history": _page("History", "/history/1827", "/history/1902", "/"),
    "/history/1827": _page("The old tower", "/history/1902", "/people/schinkel", "/"),
    "/history/1902": _page("The new tower", "/history/1827", "/light", "/"),
    "/people/schinkel": _page("Karl Friedrich Schinkel", "/history/1827", "/people", "https://example.org/schinkel"),
    "/people": _page("People", "/people/schinkel", "/people/keeper"),
    "/people/keeper": _page("The last keeper", "/light", "/people", "/people/keeper/diary"),
    "/people/keeper/diary": _page("A diary", "/people/keeper", "/people/keeper/diary/2"),
    "/people/keeper/diary/2": _page("A diary, second part", "/people/keeper/diary", "/people/keeper/diary/3"),
    "/people/keeper/diary/3": _page("A diary, last part", "/people/keeper/diary/2", "/birds/gulls"),
    "/light": _page("The light", "/light/lens", "/visit"),
    "/light/lens": _page("The lens", "/light", "/people/fresnel"),
    "/visit": _page("Visit", "/visit/hours", "/visit/tickets", "/"),
    "/visit/hours": _page("Opening hours", "/visit"),
    "/birds": _page("Birds", "/birds/gulls", "/birds/terns", "/"),
    "/birds/gulls": _page("Gulls", "/birds", "/birds/terns"),
    "/birds/terns": _page("Terns", "/birds", "/birds/gulls", "/birds"),
    "/attic": _page("A page that no link leads to", "/"),
}
