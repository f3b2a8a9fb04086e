//! One direction of one layer on its way through the steps.

use std::ops::Range;

use super::schedule::Schedule;
use super::weights::Direction;
use crate::error::Result;
use crate::kernels::{self, Gates, Isa, Recurrence, Step};
use crate::qweight::QWeight;

/// The inputs of a direction, the states that it replaces, and its outputs.
pub(super) struct Run<'a> {
    pub gates: Gates,
    pub hidden_size: usize,
    /// Size of the hidden state as the next step sees it.
    pub state_size: usize,
    pub direction: &'a Direction,
    pub schedule: &'a Schedule,
    /// The rows of each step, in the order of steps.
    pub steps: Vec<Range<usize>>,
    /// States of the sequences, the longest first: `[batch, state]`, and `[batch, hidden]` of
    /// the LSTM.
    pub h: Vec<f32>,
    pub c: Vec<f32>,
    /// c after each step, if it is wanted.
    pub cs: Option<Vec<f32>>,
    /// The hidden states after each step: `[active rows, state]`.
    pub out: Vec<f32>,
}

/// A projection as a function on slices: `(xs, rows, out)`.
type Product<'a> = dyn FnMut(&[f32], usize, &mut [f32]) + 'a;

impl Run<'_> {
    /// The same for the kernel that takes all steps at once, over int8 or float16 weights.
    pub fn recurrence<'b>(&'b mut self, [ih, hh]: [&'b QWeight; 2]) -> Recurrence<'b> {
        self.out = vec![0.; self.schedule.rows * self.state_size];
        if let Some(cs) = &mut self.cs {
            cs.resize(self.out.len(), 0.);
        }
        Recurrence {
            gates: self.gates,
            steps: &self.steps,
            ih: ih.packed(),
            hh: hh.packed(),
            h: &mut self.h,
            c: &mut self.c,
            hs: &mut self.out,
            cs: self.cs.as_deref_mut().unwrap_or_default(),
        }
    }

    /// All steps one by one, over `xs`, the rows of the input.
    pub fn one_by_one(&mut self, xs: &[f32]) -> Result<()> {
        let direction = self.direction;
        let ih = direction.ih.multiply(xs, self.schedule.rows)?;
        direction.hh.with_product(|hh| match &direction.hr {
            None => self.over(&ih, hh, None),
            Some(hr) => hr.with_product(|hr| self.over(&ih, hh, Some(hr))),
        })
    }

    /// All steps over the input's product.
    fn over(
        &mut self,
        ih: &[f32],
        project_hh: &mut Product<'_>,
        mut project_hr: Option<&mut Product<'_>>,
    ) -> Result<()> {
        let isa = Isa::active()?;
        let Self {
            gates,
            hidden_size,
            state_size,
            ..
        } = *self;
        let width = gates.count() * hidden_size;
        self.out = vec![0.; self.schedule.rows * state_size];
        let mut hh = vec![0.; self.schedule.batch * width];
        // The hidden state before it is projected; without projection it is the state itself.
        let mut raw = vec![
            0.;
            project_hr
                .as_ref()
                .map_or(0, |_| self.schedule.batch * hidden_size)
        ];
        for rows in &self.steps {
            let active = rows.len();
            let ih = &ih[rows.start * width..rows.end * width];
            let hh = &mut hh[..active * width];
            let h = &mut self.h[..active * state_size];
            let c = match gates {
                Gates::Lstm => &mut self.c[..active * hidden_size],
                _ => &mut [],
            };
            project_hh(h, active, hh);
            match &mut project_hr {
                None => kernels::update_state(isa, gates, hidden_size, Step { ih, hh, h, c }),
                Some(project) => {
                    let raw = &mut raw[..active * hidden_size];
                    kernels::update_state(isa, gates, hidden_size, Step { ih, hh, h: raw, c });
                    project(raw, active, h);
                }
            }
            self.out[rows.start * state_size..][..h.len()].copy_from_slice(h);
            if let Some(cs) = &mut self.cs {
                cs.extend_from_slice(c);
            }
        }
        Ok(())
    }
}
