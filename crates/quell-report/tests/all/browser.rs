//! The pages in a browser: at three widths and in both schemes no text is clipped or overlaps, nothing fails, and, with
//! axe-core, nobody is shut out. `make test-report` has both; elsewhere a Chromium that is installed is used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quell_report::page::{self, ReportSource};
use quell_result::ResultDocument;
use quell_test_support::{Lacks, skip, skip_part};
use serde_json::Value;

use crate::hostile::with_text;
use crate::recorded::{documents, experiment, explained, simulated, source};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const WIDTHS: [u32; 3] = [360, 800, 1400];
/// Path of `axe.min.js`.
const AXE: &str = "QUELL_AXE";
/// `make test-report` sets it: a missing browser is then a failure.
const REQUIRED: &str = "QUELL_TEST_BROWSER";

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    BROWSERS.into_iter().find_map(found)
}

/// Pages that differ in what can go wrong.
fn pages() -> Vec<(&'static str, String)> {
    let page = |document: &Value| page::page(&[source("page.json", document)]).unwrap();
    let generated = ResultDocument::Experiment(Box::new(experiment().clone()));
    let generated = ReportSource { name: "generated.json".to_owned(), document: generated };
    let all = documents();
    let several = page::page(&[source("before.json", &all[0]), source("after.json", &all[0])]).unwrap();
    vec![
        ("generated", page::page(&[generated]).unwrap()),
        ("several", several),
        ("search", page(&all[2])),
        ("published", page(&all[3])),
        ("simulation", page(&all[4])),
        ("one-load", page(&simulated(&[("base", 50e3, 1), ("suspend20", 50e3, 1), ("suspend20", 50e3, 2)]))),
        ("load", page(&all[5])),
        ("clients", page(&all[7])),
        ("xsk", page(&all[8])),
        ("recording", page(&all[6])),
        ("recorded-markup", page(&with_text(&all[6], "\"></script><img src=x onerror=alert(1)>"))),
        ("explanation", page::explanation(&explained())),
        ("markup", page(&with_text(&all[0], "\"></script><img src=x onerror=alert(1)>"))),
        ("long", page(&with_text(&all[0], &"long ".repeat(2_000)))),
        ("unbroken", page(&with_text(&all[2], &"x".repeat(10_000)))),
    ]
}

#[test]
fn pages_are_legible_at_all_widths_in_both_schemes_and_nothing_fails() {
    let Some(browser) = browser() else {
        assert!(std::env::var_os(REQUIRED).is_none(), "none of {BROWSERS:?} is on the PATH");
        return skip(Lacks::LeftTo("make test-report"), "needs Chromium");
    };
    let axe = std::env::var_os(AXE).map(PathBuf::from);
    if axe.is_none() {
        skip_part(Lacks::LeftTo("make test-report"), "needs axe-core");
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-pages");
    fs::create_dir_all(&dir).unwrap();
    let pages = pages();
    for (name, page) in &pages {
        fs::write(dir.join(format!("{name}.html")), watched(page, axe.as_deref())).unwrap();
    }
    for scheme in ["0", "1"] {
        let problems = problems(&browser, &dir, &pages, scheme);
        assert_eq!(problems, Vec::<String>::new(), "preferredColorScheme {scheme}");
    }
}

/// The page with scripts that collect failures from its beginning, and look at it at its end.
fn watched(page: &str, axe: Option<&Path>) -> String {
    let axe = axe.map_or_else(String::new, |axe| format!("<script src=\"file://{}\"></script>", axe.display()));
    page.replacen("<head>", &format!("<head><script>{FAILURES}</script>{axe}"), 1).replacen(
        "</body>",
        &format!("<script>{CHECKS}</script></body>"),
        1,
    )
}

/// What the pages report at all widths.
fn problems(browser: &Path, dir: &Path, pages: &[(&str, String)], scheme: &str) -> Vec<String> {
    let frame = |name: &str, width: u32| {
        format!("<iframe src=\"{name}.html\" width=\"{width}\" height=\"900\" name=\"{name} {width}\"></iframe>")
    };
    let frames: String = pages.iter().flat_map(|(name, _)| WIDTHS.map(|width| frame(name, width))).collect();
    let file = dir.join("frames.html");
    fs::write(&file, format!("<!DOCTYPE html><pre id=result></pre><script>{COLLECT}</script>{frames}")).unwrap();
    let profile = dir.join("profile");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=600000"])
        .arg("--allow-file-access-from-files")
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&output.stdout);
    let result = page.split("<pre id=\"result\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let result = result.unwrap_or_else(|| panic!("no result: {}", String::from_utf8_lossy(&output.stderr)));
    let lines: Vec<String> = result.lines().map(str::to_owned).collect();
    let reported = lines.iter().filter(|line| *line == "done").count();
    assert_eq!(reported, pages.len() * WIDTHS.len(), "not every frame reported: {lines:#?}");
    lines.into_iter().filter(|line| line != "done" && !line.is_empty()).collect()
}

const FAILURES: &str = "
const problems = [];
addEventListener('error', event => problems.push('error: ' + (event.message || event.target.src)), true);
addEventListener('unhandledrejection', event => problems.push('rejected: ' + event.reason));
console.error = (...words) => problems.push('console: ' + words.join(' '));
window.alert = text => problems.push('alert: ' + text);
";

/// Texts of charts stay in their charts and apart from each other; nothing is wider than the window.
const CHECKS: &str = "
addEventListener('load', async () => {
  const named = element => element.textContent.trim().slice(0, 30);
  for (const chart of document.querySelectorAll('svg.chart')) {
    const frame = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    texts.forEach(([text, box], index) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        problems.push('clipped: ' + named(text));
      for (const [other, its] of texts.slice(0, index)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const along = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1.5 && along > 4) problems.push('overlap: ' + named(text) + ' and ' + named(other));
      }
    });
  }
  if (document.documentElement.scrollWidth > innerWidth) problems.push('wider than the window');
  for (const element of document.querySelectorAll('h1, h2, h3, p, li, dt, dd, figcaption, summary, pre')) {
    if (!element.closest('.scroll') && element.getBoundingClientRect().right > innerWidth + 1)
      problems.push('beyond the window: ' + named(element));
  }
  if (document.images.length) problems.push('an image from a name');
  document.querySelectorAll('.image').forEach(image => image.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' })));
  if (document.querySelector('.image') && document.getElementById('value').hidden) problems.push('no value by the keyboard');
  if (window.axe) {
    document.querySelectorAll('details').forEach(details => { details.open = true; });
    const { violations } = await axe.run();
    for (const { id, impact, nodes } of violations)
      if (impact === 'serious' || impact === 'critical') problems.push('axe: ' + id + ': ' + nodes[0].html.slice(0, 200));
  }
  parent.postMessage([...new Set(problems)].slice(0, 20).map(text => name + ': ' + text), '*');
});
";

const COLLECT: &str = "
addEventListener('message', event => {
  document.getElementById('result').textContent += event.data.map(text => text.replace(/\\n/g, ' ') + '\\n').join('') + 'done\\n';
});
";
