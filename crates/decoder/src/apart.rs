//! Chat templates rendered in a separate process, so that a hostile template's memory, time or
//! nesting ends only that process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::template::{LocalTemplate, Message, Variables};

/// The environment variable that marks the rendering process.
const MARK: &str = "DYNQUANT_CHAT_TEMPLATE";
/// The longest time of a rendering.
const LIMIT: Duration = Duration::from_secs(10);
const MAX_MEMORY: u64 = 2 << 30;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

#[derive(Serialize, Deserialize)]
enum Request {
    Open(String, BTreeMap<String, String>),
    Render(Vec<Message>, bool, Variables),
}

/// Makes the program render its templates in separate processes of the same executable. Must be the
/// first call in `main`; in a rendering process it does not return.
pub fn isolate_templates() {
    if std::env::var_os(MARK).is_none() {
        // If the executable is unknown, templates are rendered in this process.
        let program = std::env::current_exe().map(|program| PROGRAM.set(program));
        return drop(program);
    }
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let (current, maximum) = (Some(MAX_MEMORY), Some(MAX_MEMORY));
        let _ = setrlimit(Resource::As, Rlimit { current, maximum });
    }
    let mut template = None;
    for line in stdin().lock().lines().map_while(Result::ok) {
        let text = answer(&mut template, &line).map_err(|error| format!("{error:#}"));
        let reply = serde_json::to_string(&text).unwrap_or_default();
        if writeln!(stdout(), "{reply}").is_err() {
            break;
        }
    }
    std::process::exit(0);
}

fn answer(template: &mut Option<LocalTemplate>, line: &str) -> Result<String> {
    match serde_json::from_str(line)? {
        Request::Open(source, tokens) => {
            let opened = template.insert(LocalTemplate::new(&source, tokens)?);
            Ok(serde_json::to_string(&opened.variables()?)?)
        }
        Request::Render(messages, add_generation_prompt, variables) => {
            let template = template.as_ref().context("chat template: expected one")?;
            template.render(&messages, add_generation_prompt, &variables)
        }
    }
}

/// A template in another process, which is restarted after it has ended.
pub struct Apart {
    open: Request,
    process: Mutex<Option<Process>>,
}

impl Apart {
    /// Starts the process, and returns the further variables of the template; `None` in a program
    /// that has not called [`isolate_templates`].
    pub fn open(
        source: &str,
        tokens: &BTreeMap<String, String>,
    ) -> Result<Option<(Self, BTreeSet<String>)>> {
        if PROGRAM.get().is_none() {
            return Ok(None);
        }
        let apart = Self {
            open: Request::Open(source.to_owned(), tokens.clone()),
            process: Mutex::new(None),
        };
        let variables = serde_json::from_str(&apart.ask(None)?)?;
        Ok(Some((apart, variables)))
    }

    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<String> {
        let (messages, variables) = (messages.to_vec(), variables.clone());
        let render = Request::Render(messages, add_generation_prompt, variables);
        self.ask(Some(&render))
    }

    fn ask(&self, request: Option<&Request>) -> Result<String> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // The system may have ended a process that waited.
        let waiting = process.take().and_then(Process::running);
        let is_new = waiting.is_none();
        let mut running = match waiting {
            Some(running) => running,
            None => Process::start().context("chat template: cannot start its process")?,
        };
        let open = Some(&self.open).filter(|_| is_new);
        let mut text = Ok(String::new());
        for request in open.into_iter().chain(request) {
            let Some(reply) = running.ask(request) else {
                bail!(
                    "chat template: expected a result within {} s, {MAX_MEMORY} bytes and a stack, got none",
                    LIMIT.as_secs()
                );
            };
            text = reply;
        }
        *process = Some(running);
        text.map_err(anyhow::Error::msg)
    }
}

struct Process {
    child: Child,
    replies: Receiver<String>,
}

impl Process {
    fn start() -> Result<Self> {
        let mut command = Command::new(PROGRAM.get().context("no program")?);
        command.env(MARK, "1").stderr(Stdio::null());
        // Ctrl-c at a terminal is for the program only.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (sender, replies) = mpsc::channel();
        let out = child.stdout.take().context("no output")?;
        std::thread::Builder::new().spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        })?;
        Ok(Self { child, replies })
    }

    fn running(mut self) -> Option<Self> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }

    /// The reply; `None` from a process that has ended or takes too long.
    fn ask(&mut self, request: &Request) -> Option<Result<String, String>> {
        let line = serde_json::to_string(request).ok()?;
        writeln!(self.child.stdin.as_mut()?, "{line}").ok()?;
        serde_json::from_str(&self.replies.recv_timeout(LIMIT).ok()?).ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
