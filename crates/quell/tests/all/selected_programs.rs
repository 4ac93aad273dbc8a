//! The same program in every command, with its children: by the PID of its first process, by its name, in a network
//! namespace of its own. A real nginx with a parent that has no epoll. Needs root, Linux 6.13 and nginx.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use quell_linux::process::{Child, Spawn};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{Lacks, skip, wait_until};
use serde_json::Value;

use crate::command;

const CONFIGURATION: &str = "daemon off; user root; worker_processes 2; error_log stderr; pid DIR/pid;
events { worker_connections 64; }
http { access_log off; server { listen 192.0.2.1:80 reuseport; location / { return 200 \"ok\"; } } }";

struct Nginx {
    _lab: TestLab,
    master: Child,
    /// A name that no other program of this machine has.
    name: String,
    _connections: Vec<TcpStream>,
    dir: tempfile::TempDir,
}

impl Nginx {
    fn start(test: &str) -> Option<Self> {
        let Some(program) = ["/usr/sbin/nginx", "/usr/bin/nginx"].map(PathBuf::from).into_iter().find(|it| it.exists())
        else {
            skip(Lacks::Server("nginx"), "nginx is not installed");
            return None;
        };
        let mut lab = TestLab::raise_beside_others(test, 2)?;
        let dir = tempfile::tempdir().unwrap();
        // The name of a process is that of the file that was executed.
        let name = format!("qt{}{}", &test[..2], std::process::id());
        symlink(program, dir.path().join(&name)).unwrap();
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, CONFIGURATION.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        let words = ["-c", file.to_str().unwrap(), "-p", dir.path().to_str().unwrap()].map(str::to_owned);
        let master = lab.start(Spawn::new(dir.path().join(&name).to_str().unwrap()).args(words));
        let connect = || TcpStream::connect("192.0.2.1:80").map_err(|error| error.to_string());
        let ask = || {
            let mut connection = wait_until(connect);
            connection.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
            connection.write_all(b"GET / HTTP/1.1\r\nHost: quell\r\n\r\n").unwrap();
            assert!(connection.read(&mut [0; 512]).unwrap() > 0);
            connection
        };
        // Enough connections that each worker has some, from both queues.
        let connections = lab.client.run(|| (0..32).map(|_| ask()).collect()).unwrap();
        Some(Self { _lab: lab, master, name, _connections: connections, dir })
    }

    fn quell(&self, arguments: &[&str]) -> Command {
        command::quell(&self.dir.path().join("journal"), arguments)
    }

    fn says(&self, code: i32, arguments: &[&str]) -> String {
        command::says(code, &mut self.quell(arguments))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.quell(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"))
    }
}

/// Number of processes with a receive queue in a report of `quell top`.
fn receiving(report: &Value) -> usize {
    let programs = report["programs"].as_array().unwrap();
    programs.iter().filter(|program| !program["napis"].as_array().unwrap().is_empty()).count()
}

#[test]
fn the_pid_of_a_parent_means_its_children_in_every_command() {
    let Some(nginx) = Nginx::start("parents") else { return };
    let pid = nginx.master.pid().to_string();
    let shown = nginx.json(&["show", &pid, "-j"]);
    assert!(shown["processes"].as_array().unwrap().len() >= 3, "{shown}");
    for selected in [&["--pid", &pid][..], &["--name", &nginx.name], &[&nginx.name]] {
        let top = nginx.json(&[&["top", "-i", "0.2", "-n", "1", "-j"], selected].concat());
        assert_eq!(receiving(&top), 2, "{selected:?}: {top}");
        let report = nginx.json(&[&["doctor", "--seconds", "0", "-j"], selected].concat());
        let findings = report["findings"].as_array().unwrap();
        assert!(findings.iter().any(|finding| finding["id"] == "epoll-mixes-napis"), "{selected:?}: {report}");
        let servers = report["servers"].as_array().unwrap();
        assert_eq!(servers.len(), 1, "{report}");
        assert_eq!(
            (&servers[0]["pid"], servers[0]["processes"].as_array().unwrap().len()),
            (&nginx.master.pid().get().into(), 3)
        );
        assert_eq!((&servers[0]["queues"], &servers[0]["present"]), (&2.into(), &"base".into()));
        let next = report["conclusion"]["command"].as_str().unwrap();
        assert!(next.starts_with(&format!("quell bench --pid {pid} --steer")), "{next}");
        // bench and tune have no positional programs.
        if selected.len() > 1 {
            let tuned = nginx.says(0, &[&["tune", "--dry-run", "--goal", "least cpu"], selected].concat());
            assert!(tuned.contains("base"), "{tuned}");
        }
        let planned = nginx.says(0, &[&["attach", "defer20"], selected, &["--dry-run"]].concat());
        assert!(planned.contains("server0 rx 0-1"), "{planned}");
    }
    nginx.says(0, &["attach", "defer20", &nginx.name, "--yes", "--seconds", "0"]);
    let by_default = nginx.json(&["top", "-i", "0.2", "-n", "1", "-j"]);
    let attached = by_default["programs"].as_array().unwrap().iter().filter(|program| program["mode"] == "defer20");
    assert_eq!(attached.filter(|program| !program["napis"].as_array().unwrap().is_empty()).count(), 2, "{by_default}");
    let status = nginx.says(0, &["status"]);
    assert!(status.contains("\n  set: server0 rx 0-1 defer-hard-irqs "), "{status}");
    assert!(status.contains(&format!(" {pid}: idle: it has no connections of its own")), "the parent: {status}");
    assert!(status.contains(": cannot tell: ") && status.contains("undo it, or look again under load:"), "{status}");
    nginx.says(0, &["detach", "--name", &nginx.name]);
    assert!(nginx.says(1, &["detach", &pid]).contains("is not attached"));
}

#[test]
fn without_arguments_quell_lists_a_server_of_another_namespace_with_its_next_command() {
    let Some(nginx) = Nginx::start("overview") else { return };
    let said = nginx.says(0, &[]);
    let line = said.lines().find(|line| line.starts_with(&nginx.name)).unwrap_or_else(|| panic!("{said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words.windows(3).any(|three| three == ["base", "2", "2"]) && line.contains("note"), "{line}");
    let measure = format!("measure under load: quell bench --pid {}", nginx.master.pid());
    assert!(line.contains(&measure) && said.contains("conclusion: "), "{said}");
}

#[test]
fn a_name_without_a_program_is_refused_in_the_same_words_by_every_command() {
    let journals = tempfile::tempdir().unwrap();
    let name = "qt-no-such-program";
    let commands: [&[&str]; 9] = [
        &["show", name],
        &["doctor", name],
        &["top", "-n", "1", name],
        &["export", "--textfile", "/tmp", name],
        &["attach", "base", name],
        &["attach", "base", "--name", name],
        &["bench", "--name", name, "--output", "/dev/null"],
        &["tune", "--name", name, "--goal", "least cpu", "--dry-run"],
        &["show", "--name", name],
    ];
    for words in commands {
        let said = command::says(1, &mut command::quell(journals.path(), words));
        assert!(said.contains(&format!("no running program is called {name}")), "{words:?}: {said}");
    }
    let said = command::says(1, &mut command::quell(journals.path(), &["detach", name]));
    assert!(said.contains(&format!("{name} is not attached")), "{said}");
    for words in [&["show", "1", "--name", "x"][..], &["attach", "base", "1", "--unit", "x"]] {
        command::says(1, &mut command::quell(journals.path(), words));
    }
}

#[test]
fn several_programs_with_one_name_are_refused_with_their_pids() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("qts{}", std::process::id());
    let program = dir.path().join(&name);
    symlink("/bin/sleep", &program).unwrap();
    let mut both = [(); 2].map(|()| Command::new(&program).arg("600").spawn().unwrap());
    let mut pids = both.each_ref().map(std::process::Child::id);
    pids.sort_unstable();
    let said = command::says(1, &mut command::quell(dir.path(), &["show", &name]));
    let expected = format!("2 programs are called {name}: select them by PID: {},{}", pids[0], pids[1]);
    assert!(said.contains(&expected), "{said}");
    both.iter_mut().for_each(|child| {
        child.kill().unwrap();
        child.wait().unwrap();
    });
}
