// Runs statements in PostgreSQL, and prints what each returned: the rows, or the number of changed rows.
//
// Reads a JSON array of {sql, parameters} from the standard input. Parameters have no types, as with a driver that lets
// the server infer them.
import { PGlite } from "@electric-sql/pglite";
import { readFileSync } from "node:fs";

const database = new PGlite();
const results = [];
for (const { sql, parameters } of JSON.parse(readFileSync(0, "utf8"))) {
  const { rows, affectedRows } = await database.query(sql, parameters);
  results.push(/RETURNING|SELECT/.test(sql) ? rows.map(Object.values) : affectedRows);
}
console.log(JSON.stringify(results));
await database.close();
