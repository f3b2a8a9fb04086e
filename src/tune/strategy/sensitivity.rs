//! The layers that lose most fall back first.

use super::trials::{Trials, start};
use crate::tune::stop::Step;
use crate::tune::units::{Assignment, LayerPrecision, Units};

/// Evaluations, the float model's included, within which the first fallback is bisected.
pub(super) fn budget(units: usize) -> usize {
    units.max(1).ilog2() as usize + 3
}

/// All int8; then a bisection finds how many of the worst layers must fall back; then those that
/// need not are given back.
pub(super) fn run(units: &Units, ranking: &[usize], trials: &mut dyn Trials) -> Step {
    let Some(mut base) = start(units, trials)? else {
        return Ok(());
    };
    for precision in units.fallbacks() {
        let all = ranking.len();
        let fallen = |count: usize| units.with(&base, &ranking[..count], precision);
        let (mut fails, mut passes) = (0, all);
        while passes - fails > 1 {
            let middle = fails.midpoint(passes);
            if trials.probe(&fallen(middle))?.passed { passes = middle } else { fails = middle }
        }
        // That all together suffice was assumed.
        if passes < all || trials.probe(&fallen(all))?.passed {
            let needed = fallen(passes);
            return give_back(units, &base, needed, &ranking[..passes], trials);
        }
        base = fallen(all);
    }
    Ok(())
}

/// Takes layers out of those that fell back, as long as the criterion holds: the least sensitive
/// first. The last one stays, as the criterion failed without it.
fn give_back(
    units: &Units,
    base: &Assignment,
    mut fallen: Assignment,
    ranking: &[usize],
    trials: &mut dyn Trials,
) -> Step {
    let Some((_, others)) = ranking.split_last() else {
        return Ok(());
    };
    for &unit in others.iter().rev() {
        if trials.stops_at_first() && trials.evals() >= budget(units.len()) {
            break;
        }
        let precision: LayerPrecision = base.0[unit];
        let given = units.with(&fallen, &[unit], precision);
        if trials.probe(&given)?.passed {
            fallen = given;
        }
    }
    Ok(())
}
