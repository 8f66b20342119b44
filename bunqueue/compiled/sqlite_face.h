/* The functions of SQLite that the writer's thread calls, by their place in SQLite's own table.
 *
 * SQLite hands that table (`sqlite3_api_routines` of sqlite3ext.h, to which entries are only ever
 * added) to every extension that it loads. We let apsw load this module as one, and so call the
 * very copy of SQLite that apsw brings. A second copy in one process would not do: POSIX forgets a
 * process's locks on a file when any descriptor of it is closed, and each copy counts only its own.
 * It also spares the build SQLite's headers.
 */
#ifndef BUNQUEUE_SQLITE_FACE_H
#define BUNQUEUE_SQLITE_FACE_H

#include <stdint.h>

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;

#define SQLITE_OK 0
#define SQLITE_BUSY 5
#define SQLITE_IOERR 10
#define SQLITE_CORRUPT 11
#define SQLITE_FULL 13
#define SQLITE_NOMEM 7
#define SQLITE_MISUSE 21
#define SQLITE_TOOBIG 18
#define SQLITE_CONSTRAINT 19
#define SQLITE_MISMATCH 20
#define SQLITE_NOTADB 26
#define SQLITE_ROW 100
#define SQLITE_DONE 101
#define SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE 1006
#define SQLITE_OPEN_READWRITE 0x2
#define SQLITE_OPEN_NOMUTEX 0x8000
#define SQLITE_CHECKPOINT_PASSIVE 0
#define SQLITE_UTF8 1
#define SQLITE_STATIC ((void (*)(void *))0)

static void *const *sqlite_table; /* set once, before the first thread */

#define FROM_TABLE(place, result, arguments) ((result(*) arguments)sqlite_table[place])

#define sqlite3_bind_double FROM_TABLE(3, int, (sqlite3_stmt *, int, double))
#define sqlite3_bind_int64 FROM_TABLE(5, int, (sqlite3_stmt *, int, int64_t))
#define sqlite3_bind_null FROM_TABLE(6, int, (sqlite3_stmt *, int))
#define sqlite3_busy_timeout FROM_TABLE(14, int, (sqlite3 *, int))
#define sqlite3_errmsg FROM_TABLE(53, const char *, (sqlite3 *))
#define sqlite3_exec \
  FROM_TABLE(55, int, (sqlite3 *, const char *, int (*)(void *, int, char **, char **), void *, char **))
#define sqlite3_finalize FROM_TABLE(57, int, (sqlite3_stmt *))
#define sqlite3_get_autocommit FROM_TABLE(60, int, (sqlite3 *))
#define sqlite3_libversion_number FROM_TABLE(67, int, (void))
#define sqlite3_reset FROM_TABLE(77, int, (sqlite3_stmt *))
#define sqlite3_step FROM_TABLE(94, int, (sqlite3_stmt *))
#define sqlite3_prepare_v2 \
  FROM_TABLE(116, int, (sqlite3 *, const char *, int, sqlite3_stmt **, const char **))
#define sqlite3_clear_bindings FROM_TABLE(118, int, (sqlite3_stmt *))
#define sqlite3_open_v2 FROM_TABLE(135, int, (const char *, sqlite3 **, int, const char *))
#define sqlite3_threadsafe FROM_TABLE(144, int, (void))
#define sqlite3_db_config FROM_TABLE(163, int, (sqlite3 *, int, ...))
#define sqlite3_wal_hook \
  FROM_TABLE(175, void *, (sqlite3 *, int (*)(void *, sqlite3 *, const char *, int), void *))
#define sqlite3_close_v2 FROM_TABLE(179, int, (sqlite3 *))
#define sqlite3_db_release_memory FROM_TABLE(182, int, (sqlite3 *))
#define sqlite3_wal_checkpoint_v2 \
  FROM_TABLE(191, int, (sqlite3 *, const char *, int, int *, int *))
#define sqlite3_bind_blob64 \
  FROM_TABLE(193, int, (sqlite3_stmt *, int, const void *, uint64_t, void (*)(void *)))
#define sqlite3_bind_text64 \
  FROM_TABLE(194, int, (sqlite3_stmt *, int, const char *, uint64_t, void (*)(void *), unsigned char))

#endif
