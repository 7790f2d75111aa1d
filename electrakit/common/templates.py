"""Renders the package's jinja2 templates, which lie beside the modules that fill them."""

from typing import Any


def render(package: str, template: str, /, **values: Any) -> str:
    """The template of a package, such as `electrakit.report`, with these values.

    Values are escaped in templates whose names end in `.html.jinja`, not in others. An undefined name is an error.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, package_path=""),
        autoescape=jinja2.select_autoescape(("html.jinja",), default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)
