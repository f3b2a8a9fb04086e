//! Products of bytes where `maddubs` adds two up in an i16: written once for registers of 256 and
//! of 512 bits, whose intrinsics have other names.

/// Defines the products of codes, and `exact`, with which instruction sets with VNNI define theirs.
/// The module has `load`, `integers`, `floats`, `scaled` and `put`.
macro_rules! maddubs {
    (
        $features:literal, $register:ty,
        { lanes: $lanes:literal, bytes: $bytes:literal, panel: $panel:literal },
        [$set1_epi8:ident, $set1_epi16:ident, $set1_epi32:ident, $xor:ident, $slli:ident, $srai:ident],
        [$maddubs:ident, $madd:ident, $mullo:ident, $add:ident, $sub:ident]
    ) => {
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
        /// products of 16 registers, or 16 sums and 4 weights of 32, with which 6 rows are no faster.
        ///
        /// # Safety
        /// The CPU has these features, no other thread computes a part that overlaps, and products
        /// of two codes add up to an i16.
        #[target_feature(enable = $features)]
        unsafe fn multiply_bytes(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
            let ones = $set1_epi16(1);
            let vector = exact(
                |weights| load(weights),
                |codes: [u8; 4]| $set1_epi32(i32::from_le_bytes(codes)),
                |acc, a, b| {
                    let pairs = $maddubs(a, b);
                    $add(acc, $madd(pairs, ones))
                },
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
            let ones = $set1_epi16(1);
            let vector = exact(
                |weights| $xor(load(weights), $set1_epi8(i8::MIN)),
                |codes: [u8; 4]| $set1_epi32(i32::from_le_bytes(codes)),
                |acc, a, b| {
                    let pairs = $maddubs(b, a);
                    $add(acc, $madd(pairs, ones))
                },
            );
            let start = |row: Row, channels: Channels<'_, $lanes>| {
                // Less 128 times the activations, which weights have more.
                let more = $set1_epi32(row.sum.wrapping_mul(128));
                $sub(start(row, channels), more)
            };
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe {
                tile::multiply::<$lanes, $bytes, $panel, 4, _>(
                    product,
                    out,
                    part,
                    Split { vector, start },
                )
            }
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
                    let even = $srai::<8>($slli::<8>(bytes));
                    (even, $srai::<8>(bytes))
                },
                |EvenOdd { even, odd }| ($set1_epi32(even), $set1_epi32(odd)),
                |acc, a: ($register, $register), b: ($register, $register)| {
                    let even = $madd(a.0, b.0);
                    let odd = $madd(a.1, b.1);
                    $add(acc, $add(even, odd))
                },
            );
            // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
            unsafe {
                wide::multiply(product, out, part, 4, EvenOdd::of, |product, out, part| {
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
            dot: impl Fn($register, A, B) -> $register + Copy,
        ) -> impl Vector<$lanes, $bytes, Group = G, Acc = $register> {
            Closures {
                start: |row: Row, channels: Channels<'_, $lanes>| start(row, channels),
                load,
                splat,
                dot,
                add: |left, right| $add(left, right),
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
        fn start(row: Row, channels: Channels<'_, $lanes>) -> $register {
            let zero_point = $set1_epi32(row.zero_point.wrapping_neg());
            let acc = $mullo(zero_point, integers(channels.sums));
            let Some(zero_points) = channels.zero_points else {
                return acc;
            };
            let sum = $set1_epi32(row.sum);
            $sub(acc, $mullo(sum, integers(zero_points)))
        }
    };
}
pub(super) use maddubs;
