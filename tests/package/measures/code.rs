//! What is measured in the source: the code of a folder, without comments and unit tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::files::rust_files;

/// A function with a body.
pub struct Function {
    pub name: String,
    /// The lines between its braces.
    pub lines: usize,
    /// Whether users of the crate cannot call it. Methods of traits are not private.
    pub is_private: bool,
}

/// The code of a folder.
#[derive(Default)]
pub struct Code {
    pub files: usize,
    /// Lines that have code.
    pub lines: usize,
    /// Lines of `use` declarations.
    pub import_lines: usize,
    pub functions: Vec<Function>,
    /// `let (a, b) = (x, y);`
    pub tuple_lets: usize,
    /// `(self.a, self.b) = (x, y);`
    pub tuple_assignments: usize,
    pub named_closures: usize,
    pub single_use_bindings: usize,
    /// `Result<Result<_>>` and `Option<Option<_>>`.
    pub nested_results: usize,
    /// How often each type is defined.
    pub types: BTreeMap<String, usize>,
    /// How often each name occurs.
    names: BTreeMap<String, usize>,
}

impl Code {
    /// Reads the source below these folders.
    pub fn below(folders: &[&str], left_out: &[&str]) -> Self {
        let mut code = Self::default();
        for file in folders.iter().flat_map(|folder| rust_files(folder)) {
            if !left_out.iter().any(|folder| file.path.starts_with(folder)) {
                code.add(&file.path, &file.text);
            }
        }
        code
    }

    pub fn add(&mut self, path: &Path, text: &str) {
        let below_source = path.components().skip_while(|part| part.as_os_str() != "src");
        if path.ends_with("tests.rs") || below_source.into_iter().any(|part| part.as_os_str() == "tests") {
            return;
        }
        let mut parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        parsed.items.retain(|item| !is_test(item));
        self.files += 1;
        let mut lines = BTreeSet::new();
        for item in &parsed.items {
            let tokens = quote::quote!(#item);
            self.tokens(tokens, &mut lines);
        }
        self.lines += lines.len();
        let imports = parsed.items.iter().filter(|item| matches!(item, syn::Item::Use(_)));
        self.import_lines += imports.map(|item| line_count(item.span())).sum::<usize>();
        self.visit_file(&parsed);
    }

    /// Counts names, and the lines with code.
    fn tokens(&mut self, tokens: TokenStream, lines: &mut BTreeSet<usize>) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            if matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#')
                && tokens.peek().is_some_and(is_documentation)
            {
                tokens.next();
                continue;
            }
            lines.extend(token.span().start().line..=token.span().start().line);
            match token {
                TokenTree::Group(group) => {
                    lines.insert(group.span_close().end().line);
                    self.tokens(group.stream(), lines);
                }
                TokenTree::Ident(name) => *self.names.entry(name.to_string()).or_default() += 1,
                TokenTree::Literal(literal) => {
                    for name in captured_names(&literal.to_string()) {
                        *self.names.entry(name).or_default() += 1;
                    }
                }
                TokenTree::Punct(_) => {}
            }
        }
    }

    /// Returns the private functions of at most five lines that one place calls.
    pub fn once_helpers(&self) -> impl Iterator<Item = &Function> {
        self.functions
            .iter()
            .filter(|function| function.is_private && function.lines <= 5 && self.names.get(&function.name) == Some(&2))
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block, is_private: bool) {
        let braces = block.brace_token.span;
        let lines = braces.close().start().line.saturating_sub(braces.open().end().line + 1);
        self.functions.push(Function { name: signature.ident.to_string(), lines: lines.max(1), is_private });
    }

    fn type_named(&mut self, name: &syn::Ident) {
        *self.types.entry(name.to_string()).or_default() += 1;
    }

    /// Counts the bindings of a block that the rest of the block uses once.
    fn bindings(&mut self, block: &syn::Block) {
        for (at, statement) in block.stmts.iter().enumerate() {
            let syn::Stmt::Local(local) = statement else { continue };
            let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) else { continue };
            if name.mutability.is_some() || name.by_ref.is_some() || init.diverge.is_some() {
                continue;
            }
            self.named_closures += usize::from(matches!(*init.expr, syn::Expr::Closure(_)));
            let rest = &block.stmts[at + 1..];
            let uses = occurrences(&name.ident.to_string(), quote::quote!(#(#rest)*));
            self.single_use_bindings += usize::from(uses == 1);
        }
    }
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&syn::Item::Mod(module.clone())) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block, !matches!(function.vis, syn::Visibility::Public(_)));
        visit::visit_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for member in &item.items {
            if let syn::ImplItem::Fn(function) = member {
                let is_private = item.trait_.is_none() && !matches!(function.vis, syn::Visibility::Public(_));
                self.function(&function.sig, &function.block, is_private);
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.type_named(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.type_named(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.bindings(block);
        visit::visit_block(self, block);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let is_tuple = |init: &syn::LocalInit| matches!(*init.expr, syn::Expr::Tuple(_));
        if matches!(local.pat, syn::Pat::Tuple(_)) && local.init.as_ref().is_some_and(is_tuple) {
            self.tuple_lets += 1;
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_assign(&mut self, assignment: &'ast syn::ExprAssign) {
        let sides = (&*assignment.left, &*assignment.right);
        self.tuple_assignments += usize::from(matches!(sides, (syn::Expr::Tuple(_), syn::Expr::Tuple(_))));
        visit::visit_expr_assign(self, assignment);
    }

    fn visit_type_path(&mut self, path: &'ast syn::TypePath) {
        self.nested_results += usize::from(is_nested(&path.path));
        visit::visit_type_path(self, path);
    }
}

/// Returns whether a type is a `Result` of a `Result`, or an `Option` of an `Option`.
fn is_nested(path: &syn::Path) -> bool {
    let Some(outer) = path.segments.last() else { return false };
    if outer.ident != "Result" && outer.ident != "Option" {
        return false;
    }
    let syn::PathArguments::AngleBracketed(arguments) = &outer.arguments else { return false };
    match arguments.args.first() {
        Some(syn::GenericArgument::Type(syn::Type::Path(inner))) => {
            inner.path.segments.last().is_some_and(|inner| inner.ident == outer.ident)
        }
        _ => false,
    }
}

fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(module) => &module.attrs,
        syn::Item::Fn(function) => &function.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        _ => return false,
    };
    let is_test = |attribute: &syn::Attribute| {
        attribute.path().is_ident("cfg") && quote::quote!(#attribute).to_string().contains("(test)")
    };
    attributes.iter().any(is_test)
}

/// Returns whether this follows the `#` of a comment that documents an item.
fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    group.delimiter() == Delimiter::Bracket
        && group.stream().into_iter().next().is_some_and(|first| first.to_string() == "doc")
}

fn line_count(span: proc_macro2::Span) -> usize {
    span.end().line + 1 - span.start().line
}

/// Counts how often a name occurs in these tokens.
fn occurrences(name: &str, tokens: TokenStream) -> usize {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Group(group) => occurrences(name, group.stream()),
            TokenTree::Ident(ident) => usize::from(ident == name),
            TokenTree::Literal(literal) => {
                captured_names(&literal.to_string()).iter().filter(|captured| *captured == name).count()
            }
            TokenTree::Punct(_) => 0,
        })
        .sum()
}

/// Returns the names that a format string captures, such as `error` in `"it failed: {error}"`.
fn captured_names(literal: &str) -> Vec<String> {
    let inside = literal.split('{').skip(1).filter_map(|rest| rest.split(['}', ':']).next());
    let is_name = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    inside.filter(is_name).map(str::to_owned).collect()
}
