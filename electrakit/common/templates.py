"""Renders the package's jinja2 templates, which lie beside the modules that fill them."""

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render(package: str, template: str, /, **values: Any) -> str:
    """The template of a package, such as `electrakit.report`, with these values.

    Values are escaped in templates whose names end in `.html.jinja`, not in others. An undefined name is an error.
    """
    return environment_of(package).get_template(template).render(values)


@functools.cache  # it keeps its compiled templates
def environment_of(package: str) -> "jinja2.Environment":
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, package_path=""),
        autoescape=jinja2.select_autoescape(("html.jinja",), default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
