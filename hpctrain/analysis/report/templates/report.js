"use strict";
// Sorting and filtering of every table; without it the page shows all rows in their first order.
(() => {
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  const keyOf = (row, column, isNumber) => {
    const cell = row.cells[column];
    if (!isNumber) return cell.dataset.missing === undefined ? cell.textContent.trim() : null;
    return cell.dataset.number === undefined ? null : Number(cell.dataset.number);
  };

  const sortBy = (table, column, isNumber, descending) => {
    const body = table.tBodies[0];
    const keyed = Array.from(body.rows, (row) => [keyOf(row, column, isNumber), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = isNumber ? a - b : collator.compare(a, b);
      return descending ? -order : order;
    });
    body.append(...keyed.map(([, row]) => row));
  };

  const makeSortable = (table) => {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortBy(table, column, head.classList.contains("number"), descending);
      });
    });
  };

  const makeFilterable = (box, table) => {
    const controls = box.querySelector(".controls");
    if (!controls) return;
    controls.hidden = false;
    const text = controls.querySelector("input");
    const validity = controls.querySelector("select");
    const count = controls.querySelector(".count");
    const rows = Array.from(table.tBodies[0].rows);
    const allColumns = box.querySelector(".all-columns");
    const contentOf = (row) => {
      const cells = Array.from(row.cells);
      const texts = (part) => part.map((cell) => cell.textContent).join("\n").toLowerCase();
      return { all: texts(cells), usual: texts(cells.filter((cell) => !cell.classList.contains("extra"))) };
    };
    const contents = new Map(rows.map((row) => [row, contentOf(row)]));
    const apply = () => {
      const seen = allColumns && allColumns.checked ? "all" : "usual";
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = validity ? validity.value : "";
      let shown = 0;
      for (const row of rows) {
        const matches =
          words.every((word) => contents.get(row)[seen].includes(word)) && (!wanted || row.dataset.valid === wanted);
        row.hidden = !matches;
        shown += matches;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    text.addEventListener("input", apply);
    for (const choice of [validity, allColumns]) if (choice) choice.addEventListener("change", apply);
    apply();
  };

  for (const box of document.querySelectorAll(".table-box")) {
    const table = box.querySelector("table");
    makeSortable(table);
    makeFilterable(box, table);
  }
})();
