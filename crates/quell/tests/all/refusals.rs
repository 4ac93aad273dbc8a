//! Impossible requests fail with a message and the right exit code: output that cannot be written, missing privileges,
//! kernels without a mode, endless inputs, servers that do not answer.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{self, says};
use quell_linux::netdev::Netdev;
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip};

fn quell(arguments: &[&str]) -> Command {
    command::quell(Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/journal")), arguments)
}

fn profile(text: &str) -> tempfile::TempPath {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    file.into_temp_path()
}

/// Runs the program without any privilege. Returns its exit code and what it said; `None` if that cannot be tried here.
fn unprivileged(arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    command.arg(env!("CARGO_BIN_EXE_quell")).args(arguments).env("QUELL_JOURNAL_DIR", directory.path().join("journal"));
    command.env("XDG_CACHE_HOME", directory.path()).stdin(Stdio::null());
    let said = match command.output() {
        Ok(said) => said,
        Err(error) => {
            skip(Lacks::Tool("setpriv"), format_args!("setpriv: {error}"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    if text.contains("setpriv:") {
        skip(Lacks::Root, &text);
        return None;
    }
    Some((said.status.code(), text))
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for arguments in [&["results", "schema", "snapshot"][..], &["doctor", "--list"], &["sim", "hosts"], &["--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(says(2, quell(arguments).stdout(full)).contains("No space left on device"));
        let mut closed = Command::new("sh");
        closed.args(["-c", r#"exec "$0" "$@" >&-"#, env!("CARGO_BIN_EXE_quell")]).args(arguments);
        assert!(says(2, &mut closed).contains("it is closed"));
    }
}

#[test]
fn only_experiment_c_is_played_in_a_guest_and_none_on_the_model() {
    for (experiment, on) in [("a", "vm"), ("d", "vm"), ("c", "sim"), ("b", "sim")] {
        let said = says(1, &mut quell(&["bench", "--experiment", experiment, "--on", on]));
        assert!(said.contains(&format!("cannot be played with --on {on}; only c can, --on vm")), "{said}");
    }
}

#[test]
fn values_that_no_command_accepts_are_refused_with_what_it_accepts() {
    for (arguments, words) in [
        (&["show", "--netns", "../a"][..], "contains a slash"),
        (&["run", "--max-events", "0", "base", "--", "true"], "expected an integer from 1"),
    ] {
        let said = says(1, &mut quell(arguments));
        assert!(said.contains(words), "{said}");
    }
    let foreign = profile(r#"{"schema": "quell-snapshot/99"}"#);
    let said = says(1, &mut quell(&["doctor", "--read", foreign.to_str().unwrap()]));
    assert!(said.contains(r#"it has the schema "quell-snapshot/99", but"#), "{said}");
    let one = profile("[device.a]\nname = 'no-such-device'\n");
    let said = says(5, &mut quell(&["apply", "--dry-run", one.to_str().unwrap()]));
    assert!(!said.contains("these settings"), "{said}");
}

#[test]
fn an_endless_input_is_refused() {
    let sections: String = (0..20_000).map(|n| format!("[device.a.queues.g{n}]\nqueues = \"{n}\"\n")).collect();
    let many = profile(&format!("[device.a]\nname = \"a\"\n{sections}"));
    let many = many.to_str().unwrap();
    for arguments in [
        &["apply", "--dry-run", "/dev/zero"][..],
        &["apply", "--dry-run", many],
        &["results", "show", "/dev/zero"],
        &["doctor", "--read", "/dev/zero"],
        &["run", "--profile", "/dev/zero", "--", "true"],
    ] {
        let said = says(1, &mut quell(arguments));
        assert!(said.contains("larger than") || said.contains("more than 1000"), "{said}");
    }
}

#[test]
fn a_missing_privilege_is_reported_as_not_possible() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pid = std::process::id().to_string();
    let file = profile("[sysctl]\n\"net.core.busy_poll\" = 7\n");
    for arguments in [
        &["attach", "suspend200", &pid, "--yes"][..],
        &["apply", file.to_str().unwrap()],
        &["lab", "up"],
        &["export", "--listen", "127.0.0.1:1"],
    ] {
        let Some((code, text)) = unprivileged(arguments) else { return };
        assert_eq!(code, Some(5), "{arguments:?}: {text}");
        assert!(text.matches("this needs root").count() <= 1, "{arguments:?}: {text}");
    }
    drop(listener);
}

/// Without privileges, a dry run and the real run fail for the same reason.
#[test]
fn a_dry_run_has_the_exit_code_of_the_real_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let closed = dir.path().join("closed");
    let (now, pid) = (std::fs::read_to_string("/proc/sys/net/core/busy_poll").unwrap(), std::process::id().to_string());
    let (set, other) = (now.trim().to_owned(), format!("1{}", now.trim()));
    let (same, changed) = (
        profile(&format!("[sysctl]\n\"net.core.busy_poll\" = {set}\n")),
        profile(&format!("[sysctl]\n\"net.core.busy_poll\" = {other}\n")),
    );
    let (same, changed) = (same.to_str().unwrap(), changed.to_str().unwrap());
    let result = closed.join("result.json");
    let result = result.to_str().unwrap();
    for (code, arguments, more) in [
        (0, &["apply", same][..], &[][..]),
        (5, &["apply", changed], &[]),
        (0, &["apply", changed, "--skip-impossible"], &[]),
        (5, &["attach", "suspend20", &pid], &["--yes"]),
        (5, &["run", "defer20"], &["--", "true"]),
        (5, &["run", "suspend20", "--no-queues"], &["--", "true"]),
        (1, &["tune", "--pid", &pid, "--goal", "least cpu", "--output", result], &["--yes"]),
        (5, &["tune", "--pid", &pid, "--goal", "least cpu", "--output", "/tmp/result.json"], &["--yes"]),
        (5, &["tune", "--on", "lab", "--goal", "least cpu", "--output", "/tmp/result.json"], &["--yes"]),
    ] {
        let said = ["--dry-run", ""].map(|dry_run| {
            let dry_run = Some(dry_run).filter(|dry_run| !dry_run.is_empty());
            let words = [arguments, dry_run.as_slice(), more].concat();
            let words: Vec<&str> = words.into_iter().filter(|word| dry_run.is_none() || *word != "--yes").collect();
            unprivileged(&words)
        });
        let [Some(dry_run), Some(real)] = said else { return };
        assert_eq!((dry_run.0, real.0), (Some(code), Some(code)), "{arguments:?}: {} {}", dry_run.1, real.1);
    }
}

#[test]
fn a_mode_that_was_found_elsewhere_is_said_to_be_so_before_it_is_attached_or_run() {
    let found = profile("[program]\nmode = \"suspend20\"\nfound-elsewhere = \"found on the model of another host\"\n");
    let found = found.to_str().unwrap();
    let attach = says(1, &mut quell(&["attach", "--dry-run", "--profile", found, "--steer", "--pin", "2147483646"]));
    let run = says(127, &mut quell(&["run", "--profile", found, "--", "/no/such/program", "-p", "80"]));
    for (said, next) in [
        (attach, "\n  quell bench --pid 2147483646 --steer --pin --modes base,suspend20\n"),
        (run, "\n  quell bench --modes base,suspend20 -- /no/such/program -p 80\n"),
    ] {
        let text = "this mode was not measured on this program: found on the model of another host";
        assert!(said.contains(text) && said.contains(next), "{said}");
    }
}

#[test]
fn the_directory_of_results_is_closed_to_other_writers_under_any_umask() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("state/results");
    let mut tune = Command::new("sh");
    tune.args(["-c", r#"umask 000; exec "$0" "$@""#, env!("CARGO_BIN_EXE_quell")]).env("QUELL_RESULTS_DIR", &results);
    // It ends after the directory was created.
    tune.args(["tune", "--on", "sim", "--goal", "least cpu", "--budget", "1s"]);
    assert!(says(1, &mut tune).contains("is too short"));
    for dir in [&*results, results.parent().unwrap()] {
        let mode = std::fs::metadata(dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{} has mode {mode:o}", dir.display());
    }
}

#[test]
fn an_experiment_on_programs_of_others_names_the_missing_capability() {
    let pid = std::process::id().to_string();
    for arguments in [
        &["bench", "--pid", &pid, "--modes=base,defer20", "--output=/tmp/result.json", "--yes"][..],
        &["tune", "--pid", &pid, "--goal", "least cpu", "--output=/tmp/result.json", "--yes"],
    ] {
        let Some((code, said)) = unprivileged(arguments) else { return };
        assert!(code == Some(5) && said.contains("CAP_SYS_PTRACE"), "{arguments:?}: {code:?} {said}");
    }
}

#[test]
fn an_address_that_cannot_be_listened_on_has_its_reason_and_remedy() {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let in_use = [tcp.local_addr().unwrap().to_string(), udp.local_addr().unwrap().to_string()];
    for (arguments, tool) in [
        (&["respond", &in_use[0]][..], "ss -ltnp"),
        (&["respond", "--udp", &in_use[1]], "ss -lunp"),
        (&["export", "--listen", &in_use[0]], "ss -ltnp"),
    ] {
        let said = says(2, &mut quell(arguments));
        assert!(said.contains(&format!("{tool} 'sport = :")), "{arguments:?}: {said}");
    }
    let said = says(2, &mut quell(&["respond", "192.0.2.1:7000"]));
    assert!(said.contains("no interface of this network namespace"), "{said}");
    for arguments in
        [&["respond", "127.0.0.1:1"][..], &["respond", "--udp", "127.0.0.1:1"], &["export", "--listen=127.0.0.1:1"]]
    {
        let Some((code, said)) = unprivileged(arguments) else { return };
        assert!(code == Some(5) && said.contains("need CAP_NET_BIND_SERVICE"), "{arguments:?}: {code:?} {said}");
    }
}

#[test]
fn a_load_without_any_response_fails() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap().to_string();
    let said = says(
        3,
        &mut quell(&[
            "load",
            &address,
            "--protocol",
            "request-response",
            "--no-preload",
            "--connections",
            "2",
            "--warm-up",
            "0",
            "--seconds",
            "0.2",
        ]),
    );
    assert!(said.contains("answered no request"), "{said}");
}

#[test]
fn a_load_of_a_path_that_the_server_refuses_names_the_path() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = refusing.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in refusing.incoming() {
            let mut connection = connection.unwrap();
            std::thread::spawn(move || {
                while connection.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {
                    connection.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").unwrap();
                }
            });
        }
    });
    let load = ["load", &address, "--connections", "1", "--warm-up", "0", "--seconds", "0.2", "--rate", "100"];
    let said = says(3, &mut quell(&load));
    assert!(said.contains("answered only with errors ("), "{said}");
    assert!(said.contains("the HTTP status of / is outside 200 to 299"), "{said}");
}

#[test]
fn a_dry_run_reports_missing_threaded_busy_polling() {
    let Some(lab) = TestLab::raise_beside_others("refuse-t", 2) else { return };
    match Netdev::open().and_then(|mut netdev| netdev.takes_threaded_busy_poll()) {
        Ok(false) => {}
        other => return skip(Lacks::Machine, format_args!("{other:?}")),
    }
    let file = profile("[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"threadedbusy\"\n");
    let file = file.to_str().unwrap();
    for dry_run in [&["--dry-run"][..], &[]] {
        let said = says(5, quell(&["apply", "--netns", &lab.server_name, file]).args(dry_run));
        assert!(said.contains("needs Linux 6.19") && said.contains(":4:8"), "{said}");
        let launch = || says(5, quell(&["run"]).args(dry_run).args(["threadedbusy", "--", "true"]));
        let said = lab.server.run(launch).unwrap();
        assert!(said.contains("needs Linux 6.19"), "{said}");
    }
}

#[test]
fn a_host_wide_sysctl_is_not_set_through_a_namespace() {
    let Some(lab) = TestLab::raise_beside_others("refuse-s", 1) else { return };
    let apply = |text: &str, code| {
        let file = profile(text);
        says(code, &mut quell(&["apply", "--dry-run", "--netns", &lab.server_name, file.to_str().unwrap()]))
    };
    let now = std::fs::read_to_string("/proc/sys/net/core/busy_poll").unwrap();
    let now = now.trim();
    assert!(apply(&format!("[sysctl]\n\"net.core.busy_poll\" = {now}\n"), 0).contains("nothing to change"));
    let said = apply(&format!("[sysctl]\n\"net.core.busy_poll\" = 1{now}\n"), 5);
    assert!(said.contains("applies to the whole host") && said.contains("without --netns"), "{said}");
}

#[test]
fn a_profile_stays_applied_if_its_report_cannot_be_written() {
    let Some(lab) = TestLab::raise_beside_others("refuse-f", 1) else { return };
    let journals = tempfile::tempdir().unwrap();
    let file = profile("[sysctl]\n\"net.ipv4.ip_forward\" = 1\n");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let with_journals = |mut command: Command| {
        command.env("QUELL_JOURNAL_DIR", journals.path());
        command
    };
    let arguments = ["apply", "--netns", &lab.server_name, file.to_str().unwrap()];
    let said = says(2, with_journals(quell(&arguments)).stdout(full));
    assert!(said.contains("applied and verified") && said.contains("No space left on device"), "{said}");
    assert!(says(0, &mut with_journals(quell(&["status"]))).contains("1 setting"));
    assert!(says(0, &mut with_journals(quell(&["revert"]))).contains("1 setting"));
}
