//! The steps of one direction, one by one: over float weights, or with a projected state.

use super::weights::{Direction, DirectionShape};
use crate::error::Result;
use crate::kernels::{self, Gates, Recurrence, Step};

/// A projection as a function on slices: `(xs, rows, out)`.
type Multiply<'a> = dyn FnMut(&[f32], usize, &mut [f32]) + 'a;

/// Takes all steps over `xs`, the rows of the input.
pub(super) fn one_by_one(run: Recurrence<'_, &Direction>, xs: &[f32]) -> Result<()> {
    let direction = run.weights;
    let ih = direction.ih.multiply(xs, run.rows())?;
    direction.hh.with_product(|hh| match &direction.hr {
        None => over(run, &ih, hh, None),
        Some(hr) => hr.with_product(|hr| over(run, &ih, hh, Some(hr))),
    })
}

/// Takes all steps over the input's product.
fn over(
    run: Recurrence<'_, &Direction>,
    ih: &[f32],
    project_hh: &mut Multiply<'_>,
    mut project_hr: Option<&mut Multiply<'_>>,
) -> Result<()> {
    let (isa, batch) = (kernels::active()?, run.batch());
    let shape @ DirectionShape { gates, hidden, .. } = run.weights.shape;
    let (state, width) = (shape.state(), gates.count() * hidden);
    let mut hh = vec![0.; batch * width];
    // The hidden state before it is projected; without projection it is the state itself.
    let mut raw = vec![0.; project_hr.as_ref().map_or(0, |_| batch * hidden)];
    for rows in run.steps {
        let active = rows.len();
        let ih = &ih[rows.start * width..rows.end * width];
        let hh = &mut hh[..active * width];
        let h = &mut run.h[..active * state];
        let c = match gates {
            Gates::Lstm => &mut run.c[..active * hidden],
            _ => &mut [],
        };
        project_hh(h, active, hh);
        match &mut project_hr {
            None => kernels::update_state(isa, gates, hidden, Step { ih, hh, h, c }),
            Some(project) => {
                let raw = &mut raw[..active * hidden];
                kernels::update_state(isa, gates, hidden, Step { ih, hh, h: raw, c });
                project(raw, active, h);
            }
        }
        run.hs[rows.start * state..][..h.len()].copy_from_slice(h);
        if !run.cs.is_empty() {
            run.cs[rows.start * hidden..][..c.len()].copy_from_slice(c);
        }
    }
    Ok(())
}
