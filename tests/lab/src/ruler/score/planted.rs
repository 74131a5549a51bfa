//! Plants all mutants of a file at once, each behind a switch.
//!
//! Only one mutant is ever on, so what a mutant puts in place of an expression contains no others.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::listed::{Genre, Mutant, Place};
use crate::ruler::Failure;

/// Planted mutants, and those for which there is no place.
pub struct Planted {
    pub text: String,
    /// Mutants that turn off an arm of a `match`. Without the arm, the others may not suffice for the compiler.
    pub arms: Vec<usize>,
    pub left_out: Vec<usize>,
}

/// What the mutants change in a file.
#[derive(Default)]
struct Changes {
    /// Expressions, each with what may stand in its place, by number. Of two that begin together, the longer is first.
    wrapped: BTreeMap<(usize, std::cmp::Reverse<usize>), Vec<(usize, String)>>,
    /// Text to insert, by number.
    inserted: BTreeMap<usize, Vec<(usize, String)>>,
}

/// Plants these mutants, each with its number.
pub fn plant(text: &str, mutants: &[(usize, &Mutant)]) -> Result<Planted, Failure> {
    let mut places = Places::default();
    places.visit_file(&syn::parse_file(text)?);
    let (mut changes, mut left_out) = (Changes::default(), Vec::new());
    for (number, mutant) in mutants {
        if changes.add(text, &places, *number, mutant).is_none() {
            left_out.push(*number);
        }
    }
    let arms = mutants.iter().filter(|(_, mutant)| mutant.genre == Genre::MatchArm).map(|(number, _)| *number);
    Ok(Planted { text: changes.render(text, 0..text.len(), None), arms: arms.collect(), left_out })
}

/// Changes the text as one mutant does, without a switch.
pub fn replace(text: &str, mutant: &Mutant) -> String {
    let range = offset(text, mutant.span.start)..offset(text, mutant.span.end);
    [&text[..range.start], &mutant.replacement, &text[range.end..]].concat()
}

/// Returns the numbers of the mutants at a line of a planted text, the innermost last.
pub fn at_lines(text: &str, lines: Range<usize>) -> Vec<usize> {
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut found = Vec::new();
    for (line, content) in text.lines().enumerate().map(|(index, content)| (index + 1, content)) {
        if let Some(number) = content.strip_prefix("/*<").and_then(|rest| rest.strip_suffix("*/")) {
            open.extend(number.parse().ok().map(|number| (number, line)));
        } else if content.starts_with("/*>")
            && let Some((number, from)) = open.pop()
            && from < lines.end
            && lines.start < line
        {
            found.push((from, number));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, number)| number).collect()
}

impl Changes {
    /// Returns `None` if this mutant cannot be planted behind a switch.
    fn add(&mut self, text: &str, places: &Places, number: usize, mutant: &Mutant) -> Option<()> {
        let range = offset(text, mutant.span.start)..offset(text, mutant.span.end);
        match mutant.genre {
            // All of its mutants return one type, which cannot be that of each.
            Genre::FnValue if mutant.returns_opaque_type() => return None,
            Genre::FnValue => {
                self.insert(range.start, number, format!("if {} {{ return {}; }}", switch(number), mutant.replacement));
            }
            Genre::BinaryOperator => {
                let Binary { whole, left, right } = places.binaries.get(&range.start)?;
                let (left, right) = (&text[left.clone()], &text[right.clone()]);
                let assigns =
                    mutant.replacement.ends_with('=') && !matches!(&*mutant.replacement, "==" | "!=" | "<=" | ">=");
                let operation = if assigns {
                    format!("{left} {} {right}", mutant.replacement)
                } else {
                    format!("({left}) {} ({right})", mutant.replacement)
                };
                self.wrap(whole, number, operation);
            }
            Genre::UnaryOperator => {
                let (whole, operand) = places.unaries.get(&range.start)?;
                self.wrap(whole, number, text[operand.clone()].to_owned());
            }
            Genre::MatchArmGuard => self.wrap(&range, number, mutant.replacement.clone()),
            Genre::MatchArm => match places.arms.get(&range.start)? {
                (_, Some(guard)) => self.wrap(guard, number, "false".to_owned()),
                (pattern, None) => self.insert(pattern.end, number, format!("if !{}", switch(number))),
            },
            Genre::StructField => return None,
        }
        Some(())
    }

    fn wrap(&mut self, whole: &Range<usize>, number: usize, instead: String) {
        self.wrapped.entry((whole.start, std::cmp::Reverse(whole.end))).or_default().push((number, instead));
    }

    fn insert(&mut self, at: usize, number: usize, text: String) {
        self.inserted.entry(at).or_default().push((number, text));
    }

    /// Returns a part of the text with its mutants; without those of the `inside` of which it is.
    fn render(&self, text: &str, range: Range<usize>, inside: Option<&Range<usize>>) -> String {
        let (mut rendered, mut at) = (String::new(), range.start);
        while at < range.end {
            let wrapped = self
                .wrapped
                .range((at, std::cmp::Reverse(usize::MAX))..)
                .map(|((start, end), instead)| (*start..end.0, instead))
                .find(|(whole, _)| whole.end <= range.end && inside != Some(whole));
            let until = wrapped.as_ref().map_or(range.end, |(whole, _)| whole.start);
            rendered.push_str(&self.with_insertions(text, at..until));
            let Some((whole, instead)) = wrapped else { break };
            rendered.push('(');
            for (number, instead) in instead {
                let chosen = format!("if {} {{ {instead} }}", switch(*number));
                rendered.push_str(&marked(*number, &chosen));
                rendered.push_str(" else ");
            }
            let original = self.render(text, whole.clone(), Some(&whole));
            rendered.push_str(&format!("{{ {original} }})"));
            at = whole.end;
        }
        rendered
    }

    fn with_insertions(&self, text: &str, range: Range<usize>) -> String {
        let (mut rendered, mut at) = (String::new(), range.start);
        for (place, insertions) in self.inserted.range(range.clone()) {
            rendered.push_str(&text[at..*place]);
            for (number, insertion) in insertions {
                rendered.push_str(&marked(*number, insertion));
            }
            at = *place;
        }
        rendered.push_str(&text[at..range.end]);
        rendered
    }
}

/// Marks what belongs to a mutant, by lines of their own, so that errors of the compiler can be attributed.
fn marked(number: usize, text: &str) -> String {
    format!("\n/*<{number}*/\n{text}\n/*>{number}*/\n")
}

fn switch(number: usize) -> String {
    format!("crate::planted::is_active({number})")
}

fn offset(text: &str, place: Place) -> usize {
    let line_start = text.split_inclusive('\n').take(place.line - 1).map(str::len).sum::<usize>();
    text[line_start..].char_indices().nth(place.column - 1).map_or(text.len(), |(index, _)| line_start + index)
}

/// Where the expressions of a file are, by the place at which `cargo-mutants` changes them.
#[derive(Default)]
struct Places {
    binaries: BTreeMap<usize, Binary>,
    /// The whole, and the operand.
    unaries: BTreeMap<usize, (Range<usize>, Range<usize>)>,
    /// The pattern, and the guard.
    arms: BTreeMap<usize, (Range<usize>, Option<Range<usize>>)>,
}

struct Binary {
    whole: Range<usize>,
    left: Range<usize>,
    right: Range<usize>,
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let [whole, left, right] = [binary.span(), binary.left.span(), binary.right.span()];
            let binary_place = Binary { whole: whole.byte_range(), left: left.byte_range(), right: right.byte_range() };
            self.binaries.insert(binary.op.span().byte_range().start, binary_place);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let whole = unary.span().byte_range();
        self.unaries.insert(whole.start, (whole, unary.expr.span().byte_range()));
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let guard = arm.guard.as_ref().map(|(_, guard)| guard.span().byte_range());
        self.arms.insert(arm.span().byte_range().start, (arm.pat.span().byte_range(), guard));
        visit::visit_arm(self, arm);
    }
}

/// A chain with `let` cannot stand in parentheses.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}
