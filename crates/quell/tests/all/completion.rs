//! Completion in real shells: each reads the script of `quell completion` and completes command lines.

use std::path::Path;
use std::process::Command;

use quell_test_support::{Lacks, skip};

/// Calls the function that bash calls when a user presses TAB after these words, and prints its candidates.
const BASH: &str = r#"
source <(quell completion bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
"$(complete -p quell | sed 's/.*-F \([^ ]*\).*/\1/')" quell "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Presses TAB in an interactive zsh on a terminal of its own, until the line contains what is expected.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "autoload -U compinit; compinit -u -D; source <(quell completion zsh); PS1='ready''>'"
zpty -r shell line '*ready>*'
zpty -w -n shell "$1"$'\t'
zpty -r shell line "*$2*" && print -r -- "$line"
zpty -d shell
"#;

fn shell(program: &'static str) -> Option<Command> {
    if Command::new(program).arg("--version").output().is_err() {
        skip(Lacks::Tool(program), format_args!("{program} is not installed"));
        return None;
    }
    let mut command = Command::new(program);
    let quell = Path::new(env!("CARGO_BIN_EXE_quell")).parent().unwrap().display().to_string();
    command.env("PATH", format!("{quell}:{}", std::env::var("PATH").unwrap_or_default())).env("TERM", "dumb");
    command.env("QUELL_RESULTS_DIR", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"));
    Some(command)
}

/// Candidates of bash for the last of `words`.
fn in_bash(words: &[&str]) -> Vec<String> {
    let mut bash = shell("bash").unwrap();
    let output = bash.args(["--norc", "-c", BASH, "bash"]).args(words).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_modes() {
    assert_eq!(in_bash(&["quell", "att"]), ["attach"]);
    assert_eq!(in_bash(&["quell", "attach", "--accept"]), ["--accept-stalls"]);
    assert_eq!(in_bash(&["quell", "attach", "suspend2"]), ["suspend20", "suspend200"]);
    assert_eq!(in_bash(&["quell", "sim", "run", "--mode", "base,thr"]), ["base,threaded", "base,threadedbusy"]);
    assert_eq!(in_bash(&["quell", "attach", "--profile", "mem"]), ["memcached"]);
    assert_eq!(in_bash(&["quell", "doctor", "--explain", "nested"]), ["nested-epoll"]);
    assert_eq!(in_bash(&["quell", "show", "--device", "lo"]), ["lo"]);
    assert_eq!(in_bash(&["quell", "results", "show", "tun"]), ["tune"]);
    assert_eq!(in_bash(&["quell", "results", "schema", "exp"]), ["experiment"]);
}

#[test]
fn hidden_commands_are_not_offered() {
    let all = in_bash(&["quell", ""]);
    assert!(all.contains(&"show".to_owned()), "{all:?}");
    assert!(!all.iter().any(|one| one == "keeper" || one == "manual-pages"), "{all:?}");
}

#[test]
fn processes_with_an_epoll_are_offered_and_others_are_not() {
    let own = std::process::id().to_string();
    let offered = || in_bash(&["quell", "attach", "suspend20", ""]);
    assert!(!offered().contains(&own));
    let _epoll = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    assert!(offered().contains(&own));
}

#[test]
fn profiles_and_results_are_completed_as_files() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str| std::fs::write(directory.path().join(name), "").unwrap();
    ["host.toml", "bench-1.json", "notes.txt"].into_iter().for_each(write);
    let typed = format!("{}/", directory.path().display());
    assert_eq!(in_bash(&["quell", "apply", &typed]), [format!("{typed}host.toml")]);
    assert_eq!(in_bash(&["quell", "results", "show", &typed]), [format!("{typed}bench-1.json")]);
}

#[test]
fn files_whose_names_mean_something_to_a_shell_are_not_offered() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str| std::fs::write(directory.path().join(name), "").unwrap();
    ["host.toml", "$(id).toml", "a b.toml"].into_iter().for_each(write);
    std::fs::create_dir(directory.path().join("`id`")).unwrap();
    let typed = format!("{}/", directory.path().display());
    for option in [&["apply"][..], &["bench", "--output"]] {
        let words = [&["quell"], option, &[typed.as_str()]].concat();
        assert_eq!(in_bash(&words), [format!("{typed}host.toml")], "{option:?}");
    }
}

#[test]
fn fish_completes_with_descriptions() {
    let Some(mut fish) = shell("fish") else { return };
    let script = "quell completion fish | source; complete --do-complete 'quell det'";
    let output = fish.args(["--no-config", "-c", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "detach\tUndo `quell attach`, even if the program hangs\n");
}

#[test]
fn zsh_completes_what_is_typed() {
    let Some(mut zsh) = shell("zsh") else { return };
    let output =
        zsh.args(["-f", "-c", ZSH, "zsh", "quell attach --accept", "quell attach --accept-stalls"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("quell attach --accept-stalls"), "{said} {}", String::from_utf8_lossy(&output.stderr));
}
