//! The functions that the page calls from `page/model.js`, all on one thread.
//!
//! The page requests an input buffer, writes its input there and calls a function, which leaves its
//! output at `output_start`: JSON or floats, or a message if it returns 0. No pointer is read here;
//! only the export of names is unsafe, since names could clash with other functions.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};

use anyhow::{Context, Result, ensure};

use crate::Classifier;

thread_local! {
    static INPUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static CLASSIFIER: RefCell<Option<Classifier>> = const { RefCell::new(None) };
}

/// A buffer of `length` bytes for the input of the next call.
#[unsafe(no_mangle)]
pub extern "C" fn input_room(length: usize) -> *mut u8 {
    let mut room = vec![0; length];
    let start = room.as_mut_ptr();
    // A vector's elements keep their address when it is moved.
    INPUT.set(room);
    start
}

/// The output of the last call.
#[unsafe(no_mangle)]
pub extern "C" fn output_start() -> *const u8 {
    OUTPUT.with_borrow(|output| output.as_ptr())
}

/// The length of the last call's output, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn output_length() -> usize {
    OUTPUT.with_borrow(Vec::len)
}

/// Opens a model: the input is `config.json`, `tokenizer.json` and `model.safetensors`,
/// concatenated. The output is the state of the model.
#[unsafe(no_mangle)]
pub extern "C" fn model_open(config: usize, tokenizer: usize) -> bool {
    answer(|mut input| {
        ensure!(
            config.saturating_add(tokenizer) <= input.len(),
            "model: expected lengths within {} bytes, got {config} and {tokenizer}",
            input.len()
        );
        let weights = input.split_off(config + tokenizer);
        let (config, tokenizer) = input.split_at(config);
        let config = str::from_utf8(config).context("model/config.json: expected UTF-8")?;
        let classifier = Classifier::open(config, tokenizer, weights)?;
        let state = serde_json::to_vec(&classifier.state()?)?;
        CLASSIFIER.set(Some(classifier));
        Ok(state)
    })
}

/// Classifies the input, a text in UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn model_classify() -> bool {
    answer(|input| {
        let text = str::from_utf8(&input).context("the text: expected UTF-8")?;
        opened(|classifier| Ok(serde_json::to_vec(&classifier.classify(text)?)?))
    })
}

/// Computes the logits, f32, of the input, token ids in u32; all little-endian.
#[unsafe(no_mangle)]
pub extern "C" fn model_logits() -> bool {
    answer(|input| {
        let (ids, _) = input.as_chunks();
        let ids: Vec<u32> = ids.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let logits = opened(|classifier| classifier.logits(&ids))?;
        Ok(logits.into_iter().flat_map(f32::to_le_bytes).collect())
    })
}

fn opened<T>(of: impl FnOnce(&Classifier) -> Result<T>) -> Result<T> {
    CLASSIFIER.with_borrow(|classifier| {
        of(classifier.as_ref().context("expected an open model, got none")?)
    })
}

/// Computes the output from the input; returns false if the output is an error message.
fn answer(make: impl FnOnce(Vec<u8>) -> Result<Vec<u8>>) -> bool {
    let made = make(INPUT.take());
    let is_answer = made.is_ok();
    OUTPUT.set(made.unwrap_or_else(|error| format!("{error:#}").into_bytes()));
    is_answer
}
