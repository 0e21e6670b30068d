"""`drumline show`: one run on one page."""

from __future__ import annotations

from drumline.cli.options import Json, Run, new_app

app = new_app()


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """Show one run: its plan, curves, evaluations, checkpoints, restarts and verdict."""
    from drumline.cli.find import find_run
    from drumline.cli.output import print_json, results
    from drumline.cli.page import Page, render_page

    page = Page.read(find_run(run))
    if as_json:
        print_json(page.as_dict())
    else:
        console = results()
        console.print(render_page(page, console.width))
