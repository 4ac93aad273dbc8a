//! `quell top` on a terminal of tmux: a user types and reads the screen.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use quell_linux::Pid;
use quell_linux::event::Trigger;
use quell_linux::pidfd::{PidFd, Signal};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram};
use quell_test_support::{Lacks, PATIENCE, skip, wait_until};

/// A tmux server with one terminal, which the test's program uses. It ends when it is dropped.
struct Screen {
    server: String,
}

impl Screen {
    /// Starts `quell top ARGUMENTS` on a terminal of 80 columns and 24 rows. The shell around it prints its exit code and
    /// the settings of the terminal afterwards. Returns `None` without tmux.
    fn start(test: &str, arguments: &str) -> Option<Self> {
        Self::start_by(test, "", arguments)
    }

    /// The same with a program that starts Quell.
    fn start_by(test: &str, starter: &str, arguments: &str) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            skip(Lacks::Tool("tmux"), "no tmux for a terminal");
            return None;
        }
        // A server that is ending refuses new sessions, so each screen has its own.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let screen = Self { server: format!("quell-{test}-{}-{number}", std::process::id()) };
        let journal = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-journal");
        let quell = env!("CARGO_BIN_EXE_quell");
        let interval = if arguments.contains("-i ") { "" } else { "-i 0.25" };
        let top = format!("QUELL_JOURNAL_DIR={journal} {starter} {quell} top {interval} {arguments}");
        let line = format!("{top}; echo exit code $?; stty -a; exec sleep 60");
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &line]);
        Some(screen)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux").args(["-L", &self.server]).args(arguments).output().unwrap()
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn text(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// Returns the screen when it fulfils a condition.
    fn wait_for(&self, condition: impl Fn(&str) -> bool) -> String {
        wait_until(|| {
            let text = self.text();
            if condition(&text) { Ok(text) } else { Err(text) }
        })
    }

    fn wait_for_text(&self, part: &str) -> String {
        self.wait_for(|text| text.contains(part))
    }

    /// Process of `quell top`.
    fn top(&self) -> PidFd {
        let shell = String::from_utf8(self.tmux(&["display-message", "-p", "#{pane_pid}"]).stdout).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", shell.trim());
        let pid = wait_until(|| {
            let text = std::fs::read_to_string(&children).map_err(|error| error.to_string())?;
            text.split_whitespace().next().map(str::to_owned).ok_or_else(|| "not started".to_owned())
        });
        PidFd::open(Pid::new(pid.parse().unwrap()).unwrap()).unwrap()
    }

    /// Returns the screen when the program has exited with this code and the shell has printed the settings.
    fn ended_with(&self, code: u32) -> String {
        self.wait_for(|text| text.contains(&format!("exit code {code}\n")) && text.contains("iexten"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Runs `user` while datagrams arrive at this process on the first queue of the lab.
fn with_traffic(lab: &TestLab, user: impl FnOnce()) {
    let program = UdpProgram::start(lab, Trigger::Level);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                program.send(1);
                assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(user));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn a_user_sorts_filters_pauses_and_reads_details() {
    let Some(lab) = TestLab::raise("top-user", 2) else { return };
    let Some(screen) = Screen::start("user", &format!("{} --netns {}", std::process::id(), lab.server_name)) else {
        return;
    };
    with_traffic(&lab, || {
        screen.wait_for(|text| text.contains(") by device") && text.contains("interrupt "));
        screen.press(&["s"]);
        screen.wait_for_text(") by packets");
        screen.press(&["/", "n", "o", "n", "e"]);
        screen.wait_for(|text| text.contains("filter: none") && text.contains("Queues (0)"));
        screen.press(&["Escape"]);
        screen.wait_for(|text| !text.contains("Queues (0)"));
        screen.press(&["Space"]);
        screen.wait_for_text("PAUSED");
        screen.press(&["Space", "Enter"]);
        screen.wait_for(|text| text.contains("Bound of the wait") && !text.contains("PAUSED"));
        screen.press(&["Escape"]);
        screen.wait_for_text("Programs (1)");
        screen.press(&["Tab", "Enter"]);
        screen.wait_for(|text| text.contains("CPU per packet") && text.contains("Its queues"));
        screen.press(&["Escape"]);
        screen.wait_for_text("Programs (1)");
        screen.press(&["?"]);
        screen.wait_for_text("Keys:");
        screen.press(&["?"]);
        screen.wait_for(|text| text.contains("WAIT99") && !text.contains("KSOFT"));
        screen.tmux(&["resize-window", "-x", "160", "-y", "30"]);
        screen.wait_for_text("KSOFT");
        screen.press(&["q"]);
        screen.ended_with(0);
    });
}

#[test]
fn two_hundred_queues_that_appear_are_shown() {
    let Some(mut lab) = TestLab::raise("top-many", 1) else { return };
    let Some(screen) = Screen::start("many", &format!("--netns {}", lab.server_name)) else { return };
    screen.wait_for_text("Queues (1)");
    lab.add_device(200);
    screen.wait_for_text("Queues (201)");
    screen.press(&["End"]);
    screen.wait_for_text(" 199 ");
    screen.press(&["C-c"]);
    screen.ended_with(0);
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_before() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let Some(screen) = Screen::start("signal", "") else { return };
        screen.wait_for_text("Queues");
        screen.top().signal(signal).unwrap();
        let text = screen.ended_with(0);
        assert!(!text.contains("Queues"), "the alternate screen stayed: {text}");
        let echoes = text.split_whitespace().any(|word| word == "echo" || word == "echo;");
        assert!(echoes && text.contains(" icanon"), "the terminal stayed raw: {text}");
    }
}

#[test]
fn it_ends_when_its_terminal_is_gone_with_and_without_a_signal() {
    // The kernel signals the session that the terminal controls. A session of its own gets no signal.
    for starter in ["", "setsid -w"] {
        let Some(screen) = Screen::start_by("lost", starter, "") else { return };
        screen.wait_for_text("Queues");
        let top = screen.top();
        drop(screen);
        assert!(top.wait_for_exit(PATIENCE).unwrap(), "still running: {starter:?}");
    }
}

#[test]
fn a_namespace_that_vanishes_ends_it_with_its_name() {
    let Some(lab) = TestLab::raise("top-lost", 1) else { return };
    let name = lab.server_name.clone();
    let Some(screen) = Screen::start("gone", &format!("--netns {name}")) else { return };
    screen.wait_for_text("Queues (1)");
    drop(lab);
    let text = screen.ended_with(1);
    assert!(text.contains(&name), "{text}");
}

#[test]
fn no_color_in_the_environment_disables_colors() {
    let colors = |starter: &str| {
        let screen = Screen::start_by("color", starter, "")?;
        screen.wait_for_text("Queues");
        let text = String::from_utf8(screen.tmux(&["capture-pane", "-p", "-e"]).stdout).unwrap();
        // Parameters 30 to 37 and 90 to 97 of an SGR sequence select colors.
        let parameters = text.split("\u{1b}[").skip(1).filter_map(|rest| rest.split_once('m'));
        let is_color = |one: &str| one.len() == 2 && (one.starts_with('3') && one != "39" || one.starts_with('9'));
        Some(parameters.flat_map(|(list, _)| list.split(';')).any(is_color))
    };
    let Some(with) = colors("env -u NO_COLOR") else { return };
    assert!(with);
    assert_eq!(colors("env NO_COLOR=1"), Some(false));
}

/// Prints the CPU time of the view with 64 queues and 1,000 sockets: `cargo test --release -p quell --test
/// all top_on_a_terminal:: -- --ignored --nocapture`.
#[test]
#[ignore = "measures for a minute"]
fn figures_of_its_own_cpu_time() {
    let Some(lab) = TestLab::raise("top-cost", 64) else { return };
    let address = std::net::Ipv4Addr::UNSPECIFIED;
    let bind = |_| lab.server.run(|| std::net::UdpSocket::bind((address, 0)).unwrap()).unwrap();
    let _sockets: Vec<_> = (0..1_000).map(bind).collect();
    let arguments = format!("-i 1 {} --netns {}", std::process::id(), lab.server_name);
    let Some(screen) = Screen::start("cost", &arguments) else { return };
    with_traffic(&lab, || {
        screen.wait_for_text("Queues (6");
        let top = screen.top().pid();
        let cpu_ns = || {
            let schedstat = std::fs::read_to_string(format!("/proc/{top}/schedstat")).unwrap();
            schedstat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let (before, began) = (cpu_ns(), std::time::Instant::now());
        thread::sleep(std::time::Duration::from_secs(60));
        let share = (cpu_ns() - before) as f64 / began.elapsed().as_nanos() as f64;
        println!("{:.2} % of one CPU", 100.0 * share);
    });
}
