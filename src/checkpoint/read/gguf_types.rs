//! GGUF's types of blocks: their sizes, and the elements of the types that candle does not read.

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use half::f16;

use crate::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockType {
    number: u32,
    /// The name, empty where the number is not known.
    pub name: &'static str,
    pub elements: usize,
    pub bytes: usize,
    candle: Option<GgmlDType>,
}

macro_rules! types {
    ($($number:literal $name:literal $elements:literal $bytes:literal $($candle:ident)?;)+) => {
        [$(BlockType {
            number: $number,
            name: $name,
            elements: $elements,
            bytes: $bytes,
            candle: [$(Some(GgmlDType::$candle),)? None][0],
        }),+]
    };
}

/// The types of gguf 0.19: number, name, elements and bytes of a block, and candle's type.
const TYPES: &[BlockType] = &types! {
    2 "Q4_0" 32 18 Q4_0;    3 "Q4_1" 32 20 Q4_1;    6 "Q5_0" 32 22 Q5_0;    7 "Q5_1" 32 24 Q5_1;
    8 "Q8_0" 32 34 Q8_0;    10 "Q2K" 256 84 Q2K;    11 "Q3K" 256 110 Q3K;   12 "Q4K" 256 144 Q4K;
    13 "Q5K" 256 176 Q5K;   14 "Q6K" 256 210 Q6K;   15 "Q8K" 256 292;       20 "IQ4_NL" 32 18;
    23 "IQ4_XS" 256 136;    39 "MXFP4" 32 17;
    9 "Q8_1" 32 40;         16 "IQ2_XXS" 256 66;    17 "IQ2_XS" 256 74;     18 "IQ3_XXS" 256 98;
    19 "IQ1_S" 256 50;      21 "IQ3_S" 256 110;     22 "IQ2_S" 256 82;      29 "IQ1_M" 256 56;
    34 "TQ1_0" 256 54;      35 "TQ2_0" 256 66;      40 "NVFP4" 64 36;       41 "Q1_0" 128 18;
};

/// The levels of 4 bits of IQ4_NL and IQ4_XS.
const NONLINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the levels of MXFP4.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockType {
    /// The type of a number; a type without sizes if the number is unknown.
    pub fn numbered(number: u32) -> Self {
        let known = TYPES.iter().find(|known| known.number == number);
        known.copied().unwrap_or(Self { number, name: "", elements: 1, bytes: 0, candle: None })
    }

    pub fn is_read(self) -> bool {
        self.candle.is_some() || ["IQ4_NL", "IQ4_XS", "MXFP4", "Q8K"].contains(&self.name)
    }

    pub fn name(self) -> String {
        match self.name {
            "" => format!("type {}", self.number),
            name => name.to_owned(),
        }
    }

    /// The elements of blocks, bit for bit as GGUF's own readers have them.
    pub fn values(self, blocks: &[u8]) -> Result<Vec<f32>> {
        let each = blocks.chunks_exact(self.bytes);
        let count = each.len() * self.elements;
        if let Some(dtype) = self.candle {
            let tensor = qtensor_from_ggml(dtype, blocks, vec![count], &Device::Cpu)?;
            return Ok(tensor.dequantize(&Device::Cpu)?.to_vec1()?);
        }
        let mut values = Vec::with_capacity(count);
        for block in each {
            let half = f16::from_le_bytes([block[0], block[1]]).to_f32();
            match self.name {
                "IQ4_NL" => nibbles(half, &block[2..], NONLINEAR, &mut values),
                "IQ4_XS" => {
                    let (high, low) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
                    for (i, codes) in block[8..].chunks_exact(16).enumerate() {
                        let low = low[i / 2] >> (4 * (i % 2)) & 15;
                        let scale = i16::from(low) + 16 * (high >> (2 * i) & 3).cast_signed();
                        nibbles(half * f32::from(scale - 32), codes, NONLINEAR, &mut values);
                    }
                }
                "MXFP4" => {
                    let bits = match u32::from(block[0]) {
                        // Subnormal: half of a power of two.
                        small @ (0 | 1) => 0x0020_0000 << small,
                        exponent => (exponent - 1) << 23,
                    };
                    nibbles(f32::from_bits(bits), &block[1..], E2M1, &mut values);
                }
                _ => {
                    let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
                    let codes = block[4..260].iter().map(|code| f32::from(code.cast_signed()));
                    values.extend(codes.map(|code| scale * code));
                }
            }
        }
        Ok(values)
    }
}

/// Appends the elements of codes of 4 bits: first the elements of the low bits of all bytes.
fn nibbles(scale: f32, codes: &[u8], levels: [i8; 16], to: &mut Vec<f32>) {
    let value = |code: u8| scale * f32::from(levels[usize::from(code)]);
    to.extend(codes.iter().map(|byte| value(byte & 15)));
    to.extend(codes.iter().map(|byte| value(byte >> 4)));
}
