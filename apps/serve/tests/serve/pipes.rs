//! Pipes without a reader, and a full device.

#[cfg(target_os = "linux")]
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::process::{PATIENCE, command, rest};

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn that_are_closed_are_no_fault() {
    let help = |option: &str, stdout: Stdio| {
        let output = command().arg(option).stdout(stdout).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    for option in ["--help", "--version"] {
        assert_eq!(help(option, closed()), (Some(0), String::new()));
        #[cfg(target_os = "linux")]
        {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let (status, stderr) = help(option, full.into());
            assert_eq!(status, Some(1));
            assert!(stderr.starts_with("error: stdout: No space left"), "{stderr}");
        }
    }
    for options in [["--queue", "0"], ["--model", "/no/such/folder"]] {
        let status = command().args(options).stderr(closed()).status();
        assert_eq!(status.unwrap().code(), Some(1), "{options:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_server_goes_on_when_nobody_reads_its_logs() {
    let mut server = command();
    server.args(["--port", "0", "--log-json"]).stderr(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = loop {
        let log: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if log["message"] == "listening" {
            break log["address"].as_str().unwrap().to_owned();
        }
    };
    drop(lines);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let reply = rest(stream);
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
    let id = server.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
