//! Plants all mutants of a file at once, each behind a switch.
//!
//! Only one mutant is ever on, so what a mutant puts in place of an expression contains no others.

use std::cmp::Reverse;
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

/// Texts of mutants, each with the number of its mutant.
type Texts = Vec<(usize, String)>;

/// What the mutants change in a file.
#[derive(Default)]
struct Changes {
    /// Expressions, by start and end, each with what may stand in its place. Of two that begin together, the longer is
    /// first.
    wrapped: BTreeMap<(usize, Reverse<usize>), Texts>,
    /// What to insert, by place.
    inserted: BTreeMap<usize, Texts>,
}

/// Plants these mutants, each with its number.
pub fn plant(text: &str, mutants: &[(usize, &Mutant)]) -> Result<Planted, Failure> {
    let mut places = Places::default();
    places.visit_file(&syn::parse_file(text)?);
    let mut changes = Changes::default();
    let mut left_out = Vec::new();
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
            // Its mutants return different types, which cannot stand in one function.
            Genre::FnValue if mutant.returns_opaque_type() => return None,
            Genre::FnValue => {
                self.insert(range.start, number, format!("if {} {{ return {}; }}", switch(number), mutant.replacement));
            }
            Genre::BinaryOperator => {
                let Binary { whole, left, right } = places.binaries.get(&range.start)?;
                let left = &text[left.clone()];
                let right = &text[right.clone()];
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
        self.wrapped.entry((whole.start, Reverse(whole.end))).or_default().push((number, instead));
    }

    fn insert(&mut self, at: usize, number: usize, text: String) {
        self.inserted.entry(at).or_default().push((number, text));
    }

    /// Returns a part of the text with its mutants. If it is the whole of an expression, `inside`, the mutants of that
    /// expression are left out.
    fn render(&self, text: &str, range: Range<usize>, inside: Option<&Range<usize>>) -> String {
        let mut rendered = String::new();
        let mut at = range.start;
        while at < range.end {
            let wrapped = self
                .wrapped
                .range((at, Reverse(usize::MAX))..)
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
            rendered.extend(["{ ", &original, " })"]);
            at = whole.end;
        }
        rendered
    }

    fn with_insertions(&self, text: &str, range: Range<usize>) -> String {
        let mut rendered = String::new();
        let mut at = range.start;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::score::listed::{Function, Span};

    const TEXT: &str = "fn f(a: u8) -> bool {\n    a > 1 && !g(a)\n}\n";

    /// Returns a mutant of the second line, from one column to another.
    fn mutant(genre: Genre, columns: (usize, usize), replacement: &str) -> Mutant {
        let [start, end] = [columns.0, columns.1].map(|column| Place { line: 2, column });
        Mutant {
            name: "src/a.rs:2:5: replace it".to_owned(),
            file: "src/a.rs".to_owned(),
            genre,
            replacement: replacement.to_owned(),
            span: Span { start, end },
            function: Some(Function { return_type: "-> bool".to_owned() }),
        }
    }

    /// Returns the text with whitespace and marks left out.
    fn planted(mutants: &[Mutant]) -> String {
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let planted = plant(TEXT, &numbered).unwrap();
        assert!(planted.left_out.is_empty());
        syn::parse_file(&planted.text).unwrap();
        let lines = planted.text.lines().filter(|line| !line.starts_with("/*")).map(str::trim);
        lines.collect::<String>().replace("crate::planted::is_active", "on")
    }

    #[test]
    fn each_mutant_stands_behind_its_switch() {
        let whole = mutant(Genre::FnValue, (5, 19), "true");
        let or = mutant(Genre::BinaryOperator, (11, 13), "||");
        let less = mutant(Genre::BinaryOperator, (7, 8), "<");
        let not = mutant(Genre::UnaryOperator, (14, 15), "");
        let text = planted(&[whole, or, less, not]);
        let body = "(if on(1) { (a > 1) || (!g(a)) } else {\
                    (if on(2) { (a) < (1) } else { if on(0) { return true; } a > 1 }) &&\
                    (if on(3) { g(a) } else { !g(a) }) })";
        assert_eq!(text.replace(' ', ""), format!("fn f(a: u8) -> bool {{{body}}}").replace(' ', ""));
    }

    #[test]
    fn a_mutant_alone_is_only_its_change() {
        let or = mutant(Genre::BinaryOperator, (11, 13), "||");
        assert_eq!(replace(TEXT, &or), TEXT.replace("&&", "||"));
    }

    #[test]
    fn an_error_belongs_to_the_innermost_mutant() {
        let text = "a\n/*<4*/\nb\n/*<7*/\nc\n/*>7*/\n/*>4*/\nd\n";
        assert_eq!([1, 3, 5, 8].map(|line| at_lines(text, line..line + 1).pop()), [None, Some(4), Some(7), None]);
    }
}
