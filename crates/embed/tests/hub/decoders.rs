//! Decoders by name: folders, and files of a repository of GGUF files.

use candle_dynquant_decoder::{Folder, hub};
use dynquant_embed::program::print;

use crate::fault;
use crate::server::{CHILD, Hub, snapshot};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/decoder");
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/decoders");
const OPENS: &str = "decoders::a_decoder_is_opened";
const NAME: &str = crate::server::NAME;

/// Opens the decoder that [`CHILD`] names; does nothing if it is not set.
#[test]
fn a_decoder_is_opened() {
    let Ok(model) = std::env::var(CHILD) else {
        return;
    };
    let opened = hub::fetch(&model).and_then(|path| Folder::open(&path, None));
    match opened {
        Ok(folder) => {
            let layers = folder.config.num_hidden_layers;
            print::data(format_args!("opened {layers} layers\n")).unwrap();
        }
        Err(error) => {
            print::fault(error.as_ref());
            std::process::exit(1);
        }
    }
}

#[test]
fn a_decoder_by_name_is_downloaded_once() {
    for (dir, name, layers, files) in [
        (FOLDER, NAME.to_owned(), 4, &["config.json", "model.safetensors", "tokenizer.json"][..]),
        (FILES, format!("{NAME}/gguf_llama.gguf"), 2, &["gguf_llama.gguf"]),
        (FILES, format!("{NAME}/gguf_llama.gguf@v1"), 2, &["gguf_llama.gguf"]),
    ] {
        let hub = Hub::start(dir, |_, usual| usual);
        for _ in 0..2 {
            let output = hub.child(OPENS, &name).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}");
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(stdout.contains(&format!("opened {layers} layers")), "{stdout}");
            assert!(snapshot(&hub).keys().eq(files), "{:?}", snapshot(&hub));
        }
        let requests = hub.paths().len();
        let offline = hub.child(OPENS, &name).env("HF_HUB_OFFLINE", "1").output();
        assert!(offline.unwrap().status.success());
        assert_eq!(hub.paths().len(), requests, "{name}");
    }
}

#[test]
fn what_a_repository_lacks_is_named() {
    let hub = Hub::start(FILES, |_, usual| usual);
    for (name, expected) in [
        (NAME.to_owned(), "it has no config.json"),
        (format!("{NAME}/x.gguf"), "it has no x.gguf"),
        (format!("{NAME}/x-00001-of-00002.gguf"), "it has no x-00001-of-00002.gguf"),
        (format!("{NAME}/../x.gguf"), "expected a name such as OWNER/MODEL"),
        (format!("{NAME}/x.bin"), "expected a name such as OWNER/MODEL"),
    ] {
        let fault = fault(&hub.child(OPENS, &name).output().unwrap());
        assert!(fault.contains(expected), "{name}: {fault}");
    }
}
