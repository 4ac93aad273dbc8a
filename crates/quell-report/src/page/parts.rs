//! Parts of pages: charts with the tables behind them, tables, commands.

use maud::{Markup, PreEscaped, html};

use crate::draw::{Chart, Grid};

/// A section with a heading of this level.
pub(crate) fn section(level: u8, heading: &str, about: &str, content: &Markup) -> Markup {
    html! {
        section {
            (self::heading(level, heading))
            @if !about.is_empty() { p.about { (about) } }
            (content)
        }
    }
}

pub(crate) fn heading(level: u8, text: &str) -> Markup {
    html! {
        @match level {
            1 => h1 { (text) },
            2 => h2 { (text) },
            _ => h3 { (text) },
        }
    }
}

/// Charts side by side.
pub(crate) fn charts<'a>(charts: impl IntoIterator<Item = &'a Chart>) -> Markup {
    html! { div.charts { @for chart in charts { (figure(chart)) } } }
}

fn figure(chart: &Chart) -> Markup {
    html! {
        figure {
            figcaption { b { (chart.title) } " " span.unit { (chart.unit) } }
            (image(chart))
            @if let Some(note) = &chart.note { p.note { (note) } }
            details { summary { "Values as a table" } (table(&chart.table, &chart.title)) }
        }
    }
}

/// The image. Its texts are escaped by the writer of the image.
fn image(chart: &Chart) -> Markup {
    let name = format!("{}, {}; the table behind it has the values", chart.title, chart.unit);
    html! { div.image role="img" aria-label=(name) { (PreEscaped(&chart.svg)) } }
}

/// A table in a frame that scrolls where it is too wide.
pub(crate) fn table(grid: &Grid, name: &str) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("{name}: values")) {
            table {
                thead { tr { @for cell in &grid.head { th scope="col" { (cell) } } } }
                tbody { @for row in &grid.rows { tr {
                    @for (index, cell) in row.iter().enumerate() {
                        @if index == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                    }
                } } }
            }
        }
    }
}

/// A command to copy.
pub(crate) fn command(text: &str) -> Markup {
    html! { pre.command tabindex="0" role="region" aria-label="command" { code { (text) } } }
}

/// Names and values.
pub(crate) fn facts(facts: &[(&str, String)]) -> Markup {
    html! { dl { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } } }
}
