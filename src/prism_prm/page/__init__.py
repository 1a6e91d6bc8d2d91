"""The page on which people look at scores, errors, searches and runs: served at `/`, or one file that needs no server.

A *document* is what a view shows: JSON that Python makes from results on disk (`document.Document`). Its `kind` names
the view. There are three seams, and the rest of the page knows none of the kinds:

- **Python makes documents.** `documents.SOURCES` maps a name to a function that looks at a place (a folder, a file) and
  returns its documents, or None where the place is not of its sort. A document has a title to list it by, the files it
  is made from, and `body()`, which is called only when somebody looks. NaN in a body becomes null.
- **JavaScript shows them.** `files/app.js` lists the views in `VIEWS`. A view is a module that exports
  `{kind, tab, render(root, body, page)}`, built with `h` of `files/dom.js`, which makes text nodes only;
  `files/steps.js` shows a solution with its scores. `render` may return a function that takes a changed body (of a
  running search); without one the view is drawn anew. `page.load(id)` gets a further document, such as one that is not
  `listed` by itself.
- **Two ways to the browser.** `html.static_page` embeds all documents, each in a block of JSON, and inlines the
  modules: an import must be one line, `import { a, b } from "./x.js";`, and an export must begin its line. A server
  gives the modules as they are, and documents at `/v1/documents` with an ETag made from their files; the page asks
  again every two seconds.
"""
