//! Pictures: files in memory or on disk, or pixels, within limits.

use std::io::Cursor;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::input;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

/// The longest file of a picture.
const MAX_FILE: u64 = 64 << 20;
/// The most pixels of a picture, also after it is resized.
pub(super) const MAX_PIXELS: usize = 1 << 26;
/// The most bytes that a decoder allocates.
const MAX_DECODED: u64 = 1 << 30;

/// A picture: a PNG, JPEG or WebP file of at most 64 MiB, or pixels; at most 2^26 pixels.
///
/// A file is read as transformers' `load_image` does: upright by its EXIF orientation, gray as
/// three equal values, without alpha.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Picture<'a> {
    /// The contents of a file.
    Bytes(&'a [u8]),
    /// The path of a file.
    Path(&'a Path),
    /// Red, green and blue of each pixel, row by row.
    Rgb {
        /// The values, `height * width * 3`.
        pixels: &'a [u8],
        /// The number of columns.
        width: usize,
        /// The number of rows.
        height: usize,
    },
}

/// The pixels of a picture, as in [`Picture::Rgb`].
#[derive(Clone)]
pub(super) struct Pixels {
    pub values: Vec<u8>,
    pub height: usize,
    pub width: usize,
}

impl Picture<'_> {
    pub(super) fn pixels(&self) -> Result<Pixels> {
        match *self {
            Self::Bytes(bytes) => decoded(bytes),
            Self::Path(path) => {
                let bytes = input::read(path, MAX_FILE);
                let bytes = bytes.context("expected a readable file of at most 64 MiB");
                bytes.and_then(|bytes| decoded(&bytes))
            }
            .with_context(|| path.display().to_string()),
            Self::Rgb { pixels, width, height } => {
                check(width, height)?;
                ensure!(
                    pixels.len() == width * height * 3,
                    "pixels: expected {width} x {height} x 3 values, got {}",
                    pixels.len()
                );
                let values = pixels.to_vec();
                Ok(Pixels { values, height, width })
            }
        }
    }
}

fn check(width: usize, height: usize) -> Result<()> {
    let count = width.checked_mul(height);
    ensure!(
        count.is_some_and(|count| (1..=MAX_PIXELS).contains(&count)),
        "expected a picture of 1 to {MAX_PIXELS} pixels, got {width} x {height}"
    );
    Ok(())
}

fn decoded(bytes: &[u8]) -> Result<Pixels> {
    ensure!(
        bytes.len() as u64 <= MAX_FILE,
        "expected a picture of at most {MAX_FILE} bytes, got {}",
        bytes.len()
    );
    let expected = "expected a PNG, JPEG or WebP picture";
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().context(expected)?;
    let format = reader.format();
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().context(expected)?;
    let is_jpeg = format == Some(ImageFormat::Jpeg);
    ensure!(!is_jpeg || has_end(bytes), "{expected}, got a JPEG without its end");
    let (width, height) = decoder.dimensions();
    check(width as usize, height as usize)?;
    let orientation = decoder.orientation().context(expected)?;
    let mut image = DynamicImage::from_decoder(decoder).context(expected)?;
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    let (width, height) = (image.width() as usize, image.height() as usize);
    let values = image.into_raw();
    Ok(Pixels { values, height, width })
}

/// Whether the scans of a JPEG end; decoders fill up what is missing with gray.
fn has_end(bytes: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    let mut rest = bytes.get(2..).unwrap_or_default();
    // Segments with their lengths, of which those before a scan may contain a whole JPEG.
    while let [0xff, kind, high, low, ..] = *rest
        && kind != SCAN
    {
        let length = 2 + usize::from(u16::from_be_bytes([high, low]));
        rest = rest.get(length..).unwrap_or_default();
    }
    rest.windows(2).any(|marker| marker == [0xff, 0xd9])
}
