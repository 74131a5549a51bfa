//! Methods of one type in several files: no two of the files may call each other's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

/// The files of one type, by the methods that each defines and calls.
#[derive(Default)]
struct Methods {
    defined: BTreeMap<String, String>,
    called: BTreeMap<String, BTreeSet<String>>,
}

/// What one file contains of the types that it implements.
struct File<'a> {
    path: &'a str,
    types: &'a mut BTreeMap<(String, String), Methods>,
    /// The type of the current implementation.
    current: Option<(String, String)>,
}

/// Returns pairs of files in which methods of one type call each other both ways, as text.
pub fn mutual_pairs<'a>(sources: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Vec<String> {
    let mut types = BTreeMap::new();
    for (path, text) in sources {
        let parsed = syn::parse_file(text).unwrap();
        let path = path.to_str().unwrap();
        File { path, types: &mut types, current: None }.visit_file(&parsed);
    }
    let mut pairs = Vec::new();
    for ((_, name), methods) in types {
        let edges = methods.edges();
        let mutual = edges.iter().filter(|(from, to)| from < to && edges.contains(&(*to, *from)));
        pairs.extend(mutual.map(|(one, other)| format!("{name}: {one} and {other}")));
    }
    pairs
}

impl Methods {
    /// From the file of a call to the file of the method.
    fn edges(&self) -> BTreeSet<(&str, &str)> {
        let calls = self.called.iter().flat_map(|(file, called)| called.iter().map(move |method| (file, method)));
        let edges = calls.filter_map(|(from, method)| Some((from.as_str(), self.defined.get(method)?.as_str())));
        edges.filter(|(from, to)| from != to).collect()
    }
}

impl File<'_> {
    fn calls(&mut self, method: &syn::Ident) {
        if let Some(key) = &self.current {
            let methods = self.types.entry(key.clone()).or_default();
            methods.called.entry(self.path.to_owned()).or_default().insert(method.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for File<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let syn::Type::Path(named) = &*item.self_ty else { return };
        let (None, Some(last)) = (&item.trait_, named.path.segments.last()) else { return };
        let folder = self.path.split('/').next().unwrap_or_default().to_owned();
        self.current = Some((folder, last.ident.to_string()));
        visit::visit_item_impl(self, item);
        self.current = None;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if let Some(key) = &self.current {
            let methods = self.types.entry(key.clone()).or_default();
            methods.defined.insert(function.sig.ident.to_string(), self.path.to_owned());
        }
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let on_self = matches!(&*call.receiver, syn::Expr::Path(receiver) if receiver.path.is_ident("self"));
        if on_self {
            self.calls(&call.method);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let segments = &path.path.segments;
        if segments.len() == 2 && segments[0].ident == "Self" {
            self.calls(&segments[1].ident);
        }
    }
}

#[test]
fn calls_both_ways_are_found() {
    let one = "impl Both { fn a(&self) { self.b(); } fn c(&self) {} }";
    let other = "impl Both { fn b(&self) { if true { Self::c(self); } } }\nimpl Alone { fn d(&self) { self.e(); } }";
    let sources = [(Path::new("x/one.rs"), one), (Path::new("x/other.rs"), other)];
    assert_eq!(mutual_pairs(sources), ["Both: x/one.rs and x/other.rs"]);
    let elsewhere = [(Path::new("x/one.rs"), one), (Path::new("y/other.rs"), other)];
    assert_eq!(mutual_pairs(elsewhere), [""; 0], "another type of that name");
}
