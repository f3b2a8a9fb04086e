//! Registers of 256 and of 512 bits: what AVX2 and AVX-512 do alike, written once.
//!
//! `maddubs` multiplies bytes and adds pairs of products into an i16. That is exact where the codes
//! of activations have 7 bits, `2 * 127 * 128 < 2^15`, or the weights' a reduced range,
//! `2 * 255 * 64 < 2^15`, as by some presets. For other weights activations are
//! [split](crate::loops::split). Keys and values of attention are widened to i16, even and odd ones
//! separately, and `madd` adds pairs of products into an i32.

/// Defines the functions of an instruction set, and those with which sets with VNNI define theirs.
///
/// The module has the intrinsics of its registers, named without their prefix, `transpose_square`,
/// and `signs` and `with_signs`.
macro_rules! functions_of_registers {
    (
        $features:literal, $integers:ty, $floats:ty,
        {
            lanes: $lanes:literal, halves: $halves:literal, bytes: $bytes:literal,
            panel: $panel:literal
        },
        rows: { f16: $f16_rows:literal, blocks: [$block_rows_4:literal, $block_rows_8:literal] }
    ) => {
        /// Runs an op, compiled with these features, out of line.
        #[target_feature(enable = $features)]
        #[inline(never)]
        pub fn run<O: Op>(op: O) -> O::Out {
            op.run::<f32>()
        }

        #[target_feature(enable = $features)]
        pub fn widen(halves: &[f16], out: &mut [f32]) {
            let (halves, halves_rest) = halves.as_chunks::<$lanes>();
            let (out, out_rest) = out.as_chunks_mut::<$lanes>();
            for (halves, out) in halves.iter().zip(out) {
                // SAFETY: both arrays have as many elements as a register; no alignment is asked.
                unsafe {
                    let halves = loadu_halves(halves.as_ptr().cast());
                    storeu_ps(out.as_mut_ptr(), cvtph_ps(halves));
                }
            }
            convert::widen_f16(halves_rest, out_rest);
        }

        #[target_feature(enable = $features)]
        pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, [rows, columns]: [usize; 2]) {
            float_tile::transpose::<$lanes>(from, to, rows, columns, register());
        }

        #[target_feature(enable = $features)]
        pub fn multiply_shifted<const EXACT: bool>(
            left: Left<'_>,
            right: Right<'_>,
            offsets: &[usize],
        ) {
            let right = (right, offsets);
            float_tile::product_of_shifted::<$lanes, $panel>(left, right, register());
        }

        /// The registers of floats.
        #[target_feature(enable = $features)]
        #[inline]
        pub fn register() -> impl Register<$lanes, V = $floats> {
            RegisterClosures {
                load: |from: &[f32; $lanes]| floats(from),
                splat: |value| set1_ps(value),
                add: |left, right| add_ps(left, right),
                fma: |a, b, acc| fmadd_ps(a, b, acc),
                // SAFETY: the array is a register's to write; no alignment is asked.
                store: |values, to: &mut [f32; $lanes]| unsafe {
                    storeu_ps(to.as_mut_ptr(), values)
                },
                transpose: |square| transpose_square(square),
            }
        }

        /// # Safety
        /// The CPU has these features, and no other thread computes a block that overlaps.
        #[target_feature(enable = $features)]
        pub unsafe fn attend<const CAREFUL: bool>(
            attention: &Attention<'_>,
            block: QueryBlock,
            out: &Sink<'_>,
        ) -> bool {
            let register = register();
            // SAFETY: blocks of attention are disjoint, and one thread computes each.
            unsafe {
                attention::attend_by::<$lanes, $panel, f32, _, CAREFUL>(
                    attention, block, out, register,
                )
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub fn floats(xs: &[f32; $lanes]) -> $floats {
            // SAFETY: the array is a register's to read; no alignment is asked.
            unsafe { loadu_ps(xs.as_ptr()) }
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub fn integers(xs: &[i32; $lanes]) -> $integers {
            // SAFETY: the array is a register's to read; no alignment is asked.
            unsafe { loadu(xs.as_ptr().cast()) }
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub fn load(codes: &[u8; $bytes]) -> $integers {
            // SAFETY: the array is a register's to read; no alignment is asked.
            unsafe { loadu(codes.as_ptr().cast()) }
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub fn of_halves(halves: &[[u8; 2]; $lanes]) -> $floats {
            // SAFETY: the array is half a register's to read; no alignment is asked.
            cvtph_ps(unsafe { loadu_halves(halves.as_ptr().cast()) })
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub fn put(values: $floats, out: &mut Lanes<$lanes>) {
            // SAFETY: the array is a register's to write; no alignment is asked.
            unsafe { storeu_ps(out.as_mut_ptr().cast(), values) }
        }

        /// Sums of codes by the scales of the row and of channels, plus the bias.
        #[target_feature(enable = $features)]
        #[inline]
        pub fn scaled(acc: $integers, row: Row, scales: $floats, bias: $floats) -> $floats {
            let scale = mul_ps(set1_ps(row.scale), scales);
            fmadd_ps(cvtepi32_ps(acc), scale, bias)
        }

        /// Multiplies by `maddubs` where that is exact for the codes at hand, else by `madd`: the
        /// bits are the same.
        ///
        /// # Safety
        /// The CPU has these features, and no other thread computes a part that overlaps.
        #[target_feature(enable = $features)]
        pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
            // SAFETY: the contract is the same.
            unsafe {
                match product.pair_sums(&part) {
                    PairSums::Split => multiply_split(product, out, part),
                    PairSums::Exact => multiply_bytes(product, out, part),
                    PairSums::Wide => multiply_widened(product, out, part),
                }
            }
        }

        /// A tile of 4 rows by a panel: 8 sums, 2 weights, a broadcast, ones and two pairs of
        /// products of 16 registers, or 16 sums and 4 weights of 32, with which 6 rows are no
        /// faster.
        ///
        /// # Safety
        /// The CPU has these features, no other thread computes a part that overlaps, and products
        /// of two codes add up to an i16.
        #[target_feature(enable = $features)]
        unsafe fn multiply_bytes(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
            let ones = set1_epi16(1);
            let vector = exact(
                |weights| load(weights),
                |codes: [u8; 4]| set1_epi32(i32::from_le_bytes(codes)),
                |acc, a, b| add_epi32(acc, madd_epi16(maddubs_epi16(a, b), ones)),
            );
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe { tile::multiply::<$lanes, $bytes, $panel, 4, _>(product, out, part, vector) }
        }

        /// A tile of [split](crate::loops::split) activations: as [`multiply_bytes`], but for the
        /// sign of weights.
        ///
        /// # Safety
        /// The CPU has these features, no other thread computes a part that overlaps, and the
        /// activations are split.
        #[target_feature(enable = $features)]
        unsafe fn multiply_split(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
            let ones = set1_epi16(1);
            let vector = exact(
                |weights| xor(load(weights), set1_epi8(i8::MIN)),
                |codes: [u8; 4]| set1_epi32(i32::from_le_bytes(codes)),
                |acc, a, b| add_epi32(acc, madd_epi16(maddubs_epi16(b, a), ones)),
            );
            let start = |row: Row, channels: Channels<'_, $lanes>| {
                // Less 128 times the activations, which weights have more.
                let more = set1_epi32(row.sum.wrapping_mul(128));
                sub_epi32(start(row, channels), more)
            };
            let vector = Split { vector, start };
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe { tile::multiply::<$lanes, $bytes, $panel, 4, _>(product, out, part, vector) }
        }

        /// A tile of 4 rows by a panel: 8 sums, 4 half-weights and 2 half-broadcasts of 16
        /// registers, or 16 sums and 8 half-weights of 32.
        ///
        /// # Safety
        /// The CPU has these features, and no other thread computes a part that overlaps.
        #[target_feature(enable = $features)]
        unsafe fn multiply_widened(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
            let vector = exact(
                |weights| {
                    let bytes = load(weights);
                    (srai_epi16::<8>(slli_epi16::<8>(bytes)), srai_epi16::<8>(bytes))
                },
                |EvenOdd { even, odd }| (set1_epi32(even), set1_epi32(odd)),
                |acc, a: ($integers, $integers), b: ($integers, $integers)| {
                    add_epi32(acc, add_epi32(madd_epi16(a.0, b.0), madd_epi16(a.1, b.1)))
                },
            );
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe {
                wide::multiply(product, out, part, 4, EvenOdd::new, |product, out, part| {
                    tile::multiply::<$lanes, $bytes, $panel, 4, _>(product, out, part, vector)
                });
            }
        }

        /// A register of exact sums, in which instruction sets differ by how they multiply.
        #[target_feature(enable = $features)]
        #[inline]
        pub fn exact<G: Group, A: Copy, B: Copy>(
            load: impl Fn(&[u8; $bytes]) -> B + Copy,
            splat: impl Fn(G) -> A + Copy,
            dot: impl Fn($integers, A, B) -> $integers + Copy,
        ) -> impl Vector<$lanes, $bytes, Group = G, Acc = $integers> {
            Closures {
                start: |row: Row, channels: Channels<'_, $lanes>| start(row, channels),
                load,
                splat,
                dot,
                add: |left, right| add_epi32(left, right),
                fold: |acc, _| acc,
                finish: |acc, row: Row, channels: Channels<'_, $lanes>, out: &mut Lanes<$lanes>| {
                    let (scales, bias) = (floats(channels.scales), floats(channels.bias));
                    put(scaled(acc, row, scales, bias), out);
                },
                activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
                group: PhantomData,
            }
        }

        /// The value that sums begin with: their correction by zero points.
        #[target_feature(enable = $features)]
        #[inline]
        fn start(row: Row, channels: Channels<'_, $lanes>) -> $integers {
            let zero_point = set1_epi32(row.zero_point.wrapping_neg());
            let acc = mullo_epi32(zero_point, integers(channels.sums));
            let Some(zero_points) = channels.zero_points else {
                return acc;
            };
            sub_epi32(acc, mullo_epi32(set1_epi32(row.sum), integers(zero_points)))
        }

        /// A tile of 4 x 16 of floats: 8 sums, 2 weights and a broadcast of 16 registers, or of
        /// 6 x 64: 24 sums, 4 weights and a broadcast of 32.
        ///
        /// # Safety
        /// The CPU has these features, and no other thread computes a part that overlaps.
        #[target_feature(enable = $features)]
        pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
            let vector = HalfVector {
                register: register(),
                load: |weights: &[u8; $halves]| {
                    // SAFETY: the array is half a register's to read; no alignment is asked.
                    cvtph_ps(unsafe { loadu_halves(weights.as_ptr().cast()) })
                },
                activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
            };
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe {
                tile::multiply::<$lanes, $halves, $panel, $f16_rows, _>(product, out, part, vector)
            }
        }

        /// A tile of 2 rows by a panel: 8 sums of even and odd inputs, 4 weights and 2 values of 16
        /// registers, or 16 sums and 8 weights of 32. The sums of earlier blocks are in memory.
        ///
        /// `avx512_bf16` takes half the time, on weights of another order; AMX calls this function
        /// for a single row.
        ///
        /// # Safety
        /// The CPU has these features, and no other thread computes a part that overlaps.
        #[target_feature(enable = $features)]
        pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
            // A bfloat16 is the upper half of an f32.
            let widen = |pairs| {
                let odd = and(pairs, set1_epi32(!0xffff));
                [cast_ps(slli_epi32::<16>(pairs)), cast_ps(odd)]
            };
            let vector = PairVector {
                register: register(),
                load: |weights: &[u8; $bytes]| widen(load(weights)),
                splat: |pair: Pair| widen(set1_epi32(i32::from_le_bytes(bytes(pair)))),
                activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
            };
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe { tile::multiply::<$lanes, $bytes, $panel, 2, _>(product, out, part, vector) }
        }

        /// Multiplies by `maddubs`, which is exact: 8 products of two codes of 4 bits and of
        /// activations add up to at most `16 * 15 * 127 < 2^15`, and two of 8 bits, by their
        /// absolute values, to `2 * 128 * 127`.
        ///
        /// # Safety
        /// The CPU has these features, and no other thread computes a part that overlaps.
        #[target_feature(enable = $features)]
        pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
            let ones = set1_epi16(1);
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe {
                if product.format().bits() == 4 {
                    let vector = of_blocks(
                        |_| set1_epi32(0),
                        |codes| nibbles(codes),
                        |acc, codes, xs| add_epi16(acc, maddubs_epi16(codes, xs)),
                        |acc, less| {
                            add_epi32(madd_epi16(acc, ones), slli_epi32::<3>(set1_epi32(less)))
                        },
                    );
                    blocks::multiply::<$lanes, $bytes, 2, $block_rows_4, _>(
                        product, out, part, vector,
                    )
                } else {
                    let vector = of_blocks(
                        |_| set1_epi32(0),
                        |codes| {
                            let codes = xor(load(codes), set1_epi8(i8::MIN));
                            [(abs_epi8(codes), signs(codes))]
                        },
                        |acc, (codes, signs), xs| {
                            let pairs = maddubs_epi16(codes, with_signs(xs, signs));
                            add_epi32(acc, madd_epi16(pairs, ones))
                        },
                        |acc, _| acc,
                    );
                    blocks::multiply::<$lanes, $bytes, 1, $block_rows_8, _>(
                        product, out, part, vector,
                    )
                }
            }
        }

        /// Codes of 4 bits: the low half of each byte, then the high half.
        #[target_feature(enable = $features)]
        #[inline]
        pub fn nibbles(codes: &[u8; $bytes]) -> [$integers; 2] {
            let (codes, low) = (load(codes), set1_epi8(15));
            [and(codes, low), and(srli_epi16::<4>(codes), low)]
        }

        /// A register of sums of blocks, in which instruction sets differ by how they multiply.
        #[target_feature(enable = $features)]
        #[inline]
        pub fn of_blocks<Int: Copy, Codes: Copy, const PER: usize>(
            start: impl Fn(i32) -> Int + Copy,
            load: impl Fn(&[u8; $bytes]) -> [Codes; PER] + Copy,
            dot: impl Fn(Int, Codes, $integers) -> Int + Copy,
            sum: impl Fn(Int, i32) -> $integers + Copy,
        ) -> impl BlockVector<$lanes, $bytes, PER> {
            BlockClosures {
                start,
                load,
                dot: move |acc, codes, xs: [u8; 4]| {
                    dot(acc, codes, set1_epi32(i32::from_le_bytes(xs)))
                },
                float: move |acc, less| cvtepi32_ps(sum(acc, less)),
                widen: |halves: &_| of_halves(halves),
                floats: register(),
                activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
            }
        }
    };
}
pub(super) use functions_of_registers;
