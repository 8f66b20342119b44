/* The writer's thread: binds packed rows, commits them, and says so; never meets the interpreter.
 *
 * A batch is a list of segments, one per statement, each with the values of its rows one behind
 * the other, and the ranges that go. The hub hands it over under a mutex, together with the memory,
 * and takes answers the same way; an eventfd says that there is one. Every read of packed bytes is
 * checked against their end, so that a slip in packing fails the batch and nothing else.
 */
#ifndef BUNQUEUE_DISK_THREAD_H
#define BUNQUEUE_DISK_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "sqlite_face.h"

enum { TAG_NULL = 0, TAG_INT = 1, TAG_FLOAT = 2, TAG_TEXT = 3, TAG_BYTES = 4 };
enum { KIND_NONE = 0, KIND_FULL = 1, KIND_OTHER = 2, KIND_DAMAGED = 3 };
enum { MESSAGE_BYTES = 256, PRAGMA_BYTES = 512, ROWS_PER_STATEMENT = 64, REST_ROWS = 10000 };
enum { SMALL_BYTES = 16384 };

typedef struct {
  unsigned char *bytes;
  size_t size, room;
  uint32_t rows;
  int statement;
} disk_segment;

typedef struct disk_batch {
  struct disk_batch *next;
  uint64_t number;
  int is_durable;
  int segments_count;
  disk_segment *segments;
  int64_t *ranges; /* pairs */
  size_t ranges_count;
} disk_batch;

/* A row that was left out: its first column, and why. */
typedef struct {
  int tag;
  int64_t number;
  char *text;
  size_t text_size;
  char why[MESSAGE_BYTES];
} disk_dropped;

typedef struct disk_answer {
  struct disk_answer *next;
  uint64_t number;
  int kind;
  char text[MESSAGE_BYTES];
  disk_dropped *dropped;
  size_t dropped_count;
  disk_batch *batch; /* a small one, so that its memory is freed where it is needed next */
} disk_answer;

typedef struct {
  char *head; /* up to VALUES where is_many, else whole */
  int width, is_many;
  sqlite3_stmt *one, *many;
} disk_statement;

typedef struct {
  /* Set before the thread starts. */
  char *path, *directory, *pragmas;
  int busy_ms, event_fd, idle_ms, pages_idle, pages_max, pages_step;
  int statements_count, removes_count; /* the first ones take a range */
  disk_statement *statements;
  /* Under the mutex. */
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  disk_batch *batches, *newest_batch;
  disk_answer *answers, *newest_answer;
  int is_closing, has_ended, references;
  char ending[MESSAGE_BYTES];
  /* The thread's own. */
  sqlite3 *db;
  sqlite3_stmt *begin, *commit, *view;
  int is_full_sync, is_damaged, has_view, wal_pages, checkpoint_at;
  uint64_t rows_written;
} disk;

/* -- memory ------------------------------------------------------------------------------------ */

static void disk_free_segments(disk_segment *segments, int count) {
  if (!segments) return;
  for (int at = 0; at < count; at++) free(segments[at].bytes);
  free(segments);
}

static void disk_free_batch(disk_batch *batch) {
  if (!batch) return;
  disk_free_segments(batch->segments, batch->segments_count);
  free(batch->ranges);
  free(batch);
}

static int disk_is_small(const disk_batch *batch) {
  size_t bytes = 0;
  for (int at = 0; at < batch->segments_count; at++) bytes += batch->segments[at].room;
  return bytes <= SMALL_BYTES;
}

static void disk_free_answer(disk_answer *answer) {
  if (!answer) return;
  for (size_t at = 0; at < answer->dropped_count; at++) free(answer->dropped[at].text);
  disk_free_batch(answer->batch);
  free(answer->dropped);
  free(answer);
}

static void disk_free(disk *self) {
  while (self->batches) {
    disk_batch *batch = self->batches;
    self->batches = batch->next;
    disk_free_batch(batch);
  }
  while (self->answers) {
    disk_answer *answer = self->answers;
    self->answers = answer->next;
    disk_free_answer(answer);
  }
  for (int at = 0; at < self->statements_count; at++) free(self->statements[at].head);
  free(self->statements);
  free(self->path);
  free(self->directory);
  free(self->pragmas);
  pthread_mutex_destroy(&self->mutex);
  pthread_cond_destroy(&self->wake);
  free(self);
}

static void disk_release(disk *self) {
  pthread_mutex_lock(&self->mutex);
  int left = --self->references;
  pthread_mutex_unlock(&self->mutex);
  if (!left) disk_free(self);
}

/* -- errors ------------------------------------------------------------------------------------ */

static const char *disk_error_name(int code) {
  switch (code & 0xff) {
    case 2: return "InternalError";
    case 3: return "PermissionsError";
    case 4: return "AbortError";
    case 5: return "BusyError";
    case 6: return "LockedError";
    case 7: return "NoMemError";
    case 8: return "ReadOnlyError";
    case 10: return "IOError";
    case 11: return "CorruptError";
    case 13: return "FullError";
    case 14: return "CantOpenError";
    case 17: return "SchemaChangeError";
    case 18: return "TooBigError";
    case 19: return "ConstraintError";
    case 20: return "MismatchError";
    case 21: return "MisuseError";
    case 26: return "NotADBError";
    default: return "SQLError";
  }
}

static void disk_say(disk *self, int code, char *text) {
  const char *message = self->db ? sqlite3_errmsg(self->db) : "out of memory";
  if (code == SQLITE_MISUSE) message = "rows were packed wrongly";
  snprintf(text, MESSAGE_BYTES, "%s: %s", disk_error_name(code), message);
}

static int disk_kind(disk *self, int code) {
  code &= 0xff;
  if (code == SQLITE_FULL) return KIND_FULL;
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) return KIND_DAMAGED;
  if (code == SQLITE_IOERR) {
    /* Growing the log's index on a full disk is told as an I/O error. */
    struct statvfs room;
    if (!statvfs(self->directory, &room) && room.f_bavail == 0) return KIND_FULL;
  }
  return KIND_OTHER;
}

/* Rows that no repetition will make acceptable. */
static int disk_is_bad_row(int code) {
  code &= 0xff;
  return code == SQLITE_CONSTRAINT || code == SQLITE_TOOBIG || code == SQLITE_MISMATCH;
}

/* -- statements -------------------------------------------------------------------------------- */

static int disk_prepare(disk *self, disk_statement *statement, int rows, sqlite3_stmt **prepared) {
  size_t head = strlen(statement->head);
  char *sql = malloc(head + (size_t)rows * (2 * (size_t)statement->width + 2) + 1), *end;
  if (!sql) return SQLITE_NOMEM;
  memcpy(sql, statement->head, head);
  end = sql + head;
  for (int row = 0; statement->is_many && row < rows; row++) {
    *end++ = row ? ',' : ' ';
    *end++ = '(';
    for (int column = 0; column < statement->width; column++) {
      *end++ = '?';
      *end++ = ',';
    }
    end[-1] = ')';
  }
  *end = 0;
  int code = sqlite3_prepare_v2(self->db, sql, -1, prepared, 0);
  free(sql);
  return code;
}

/* Bind the values of one row from `at`; returns where the next begins, or NULL with the code. */
static const unsigned char *disk_bind(sqlite3_stmt *statement, int first, int width,
                                      const unsigned char *at, const unsigned char *end,
                                      int *code) {
  for (int column = first; column < first + width; column++) {
    uint32_t size;
    int64_t number;
    double real;
    if (at >= end) goto misuse;
    switch (*at++) {
      case TAG_NULL:
        *code = sqlite3_bind_null(statement, column);
        break;
      case TAG_INT:
        if (end - at < 8) goto misuse;
        memcpy(&number, at, 8);
        at += 8;
        *code = sqlite3_bind_int64(statement, column, number);
        break;
      case TAG_FLOAT:
        if (end - at < 8) goto misuse;
        memcpy(&real, at, 8);
        at += 8;
        *code = sqlite3_bind_double(statement, column, real);
        break;
      case TAG_TEXT:
      case TAG_BYTES:
        if (end - at < 4) goto misuse;
        memcpy(&size, at, 4);
        if ((size_t)(end - at) - 4 < size) goto misuse;
        *code = at[-1] == TAG_TEXT
                    ? sqlite3_bind_text64(statement, column, (const char *)at + 4, size,
                                          SQLITE_STATIC, SQLITE_UTF8)
                    : sqlite3_bind_blob64(statement, column, at + 4, size, SQLITE_STATIC);
        at += 4 + (size_t)size;
        break;
      default:
        goto misuse;
    }
    if (*code != SQLITE_OK) return 0;
  }
  return at;
misuse:
  *code = SQLITE_MISUSE;
  return 0;
}

/* Return where the next row begins, or NULL. */
static const unsigned char *disk_skip(int width, const unsigned char *at,
                                      const unsigned char *end) {
  while (width--) {
    uint32_t size;
    if (at >= end) return 0;
    switch (*at++) {
      case TAG_NULL:
        break;
      case TAG_INT:
      case TAG_FLOAT:
        if (end - at < 8) return 0;
        at += 8;
        break;
      case TAG_TEXT:
      case TAG_BYTES:
        if (end - at < 4) return 0;
        memcpy(&size, at, 4);
        if ((size_t)(end - at) - 4 < size) return 0;
        at += 4 + (size_t)size;
        break;
      default:
        return 0;
    }
  }
  return at;
}

static int disk_drop(disk *self, disk_answer *answer, int code, const unsigned char *row) {
  disk_dropped *all =
      realloc(answer->dropped, (answer->dropped_count + 1) * sizeof(disk_dropped));
  if (!all) return SQLITE_NOMEM;
  answer->dropped = all;
  disk_dropped *dropped = all + answer->dropped_count;
  memset(dropped, 0, sizeof *dropped);
  disk_say(self, code, dropped->why);
  /* The row has been walked through already, so its first value lies within bounds. */
  dropped->tag = row[0];
  if (dropped->tag == TAG_INT) {
    memcpy(&dropped->number, row + 1, 8);
  } else if (dropped->tag == TAG_TEXT) {
    uint32_t size;
    memcpy(&size, row + 1, 4);
    dropped->text = malloc((size_t)size + 1);
    if (!dropped->text) return SQLITE_NOMEM;
    memcpy(dropped->text, row + 5, size);
    dropped->text_size = size;
  }
  answer->dropped_count++;
  return SQLITE_OK;
}

static int disk_step(sqlite3_stmt *statement) {
  int code = sqlite3_step(statement);
  int reset = sqlite3_reset(statement);
  return code == SQLITE_DONE ? SQLITE_OK : reset == SQLITE_OK ? SQLITE_MISUSE : reset;
}

static int disk_run_segment(disk *self, disk_segment *segment, disk_answer *answer) {
  if (segment->statement < 0 || segment->statement >= self->statements_count) return SQLITE_MISUSE;
  disk_statement *statement = self->statements + segment->statement;
  const unsigned char *at = segment->bytes, *end = at + segment->size;
  uint32_t left = segment->rows;
  int code = SQLITE_OK, width = statement->width;
  if (statement->is_many && left >= ROWS_PER_STATEMENT && !statement->many) {
    code = disk_prepare(self, statement, ROWS_PER_STATEMENT, &statement->many);
    if (code != SQLITE_OK) return code;
  }
  while (left) {
    uint32_t alone = 1;
    if (statement->is_many && left >= ROWS_PER_STATEMENT) {
      const unsigned char *next = at;
      for (int row = 0; next && row < ROWS_PER_STATEMENT; row++)
        next = disk_bind(statement->many, row * width + 1, width, next, end, &code);
      if (next) code = disk_step(statement->many);
      if (code == SQLITE_OK) {
        at = next;
        left -= ROWS_PER_STATEMENT;
        continue;
      }
      if (!disk_is_bad_row(code)) return code;
      alone = ROWS_PER_STATEMENT; /* nothing of it was done: find the bad one */
    }
    for (; alone; alone--, left--) {
      const unsigned char *row = at;
      at = disk_skip(width, row, end);
      if (!at) return SQLITE_MISUSE;
      code = SQLITE_OK;
      if (disk_bind(statement->one, 1, width, row, end, &code)) code = disk_step(statement->one);
      if (code == SQLITE_OK) continue;
      if (!disk_is_bad_row(code)) return code;
      code = disk_drop(self, answer, code, row);
      if (code != SQLITE_OK) return code;
    }
  }
  self->rows_written += segment->rows;
  return at == end ? SQLITE_OK : SQLITE_MISUSE;
}

/* A view of the file is kept from one batch to the next: with a reading transaction open, SQLite
 * takes two of its locks for a commit, where it else takes six. It goes before a checkpoint, which
 * could not pass it, and when there is nothing to write. */
static void disk_end_view(disk *self) {
  if (self->has_view) sqlite3_reset(self->view);
  self->has_view = 0;
}

static int disk_begin(disk *self) {
  if (!self->has_view) {
    self->has_view = sqlite3_step(self->view) == SQLITE_ROW;
    if (!self->has_view) return sqlite3_reset(self->view);
  }
  int code = disk_step(self->begin);
  if ((code & 0xff) != SQLITE_BUSY) return code;
  /* Another has written since, or is about to: only who has no view waits for that. */
  disk_end_view(self);
  return disk_step(self->begin);
}

static int disk_run_batch(disk *self, disk_batch *batch, disk_answer *answer) {
  int code = disk_begin(self);
  /* Removals first: what they free is used by what comes. */
  for (int remove = 0; code == SQLITE_OK && remove < self->removes_count; remove++) {
    sqlite3_stmt *statement = self->statements[remove].one;
    for (size_t at = 0; code == SQLITE_OK && at < batch->ranges_count; at++) {
      sqlite3_bind_int64(statement, 1, batch->ranges[2 * at]);
      sqlite3_bind_int64(statement, 2, batch->ranges[2 * at + 1]);
      code = disk_step(statement);
    }
  }
  for (int at = 0; code == SQLITE_OK && at < batch->segments_count; at++)
    code = disk_run_segment(self, batch->segments + at, answer);
  return code == SQLITE_OK ? disk_step(self->commit) : code;
}

/* Commit the batch or nothing of it; rows that can never be stored are left out. */
static void disk_write(disk *self, disk_batch *batch, disk_answer *answer) {
  int code = SQLITE_OK;
  if (batch->is_durable != self->is_full_sync) {
    code = sqlite3_exec(self->db,
                        batch->is_durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL",
                        0, 0, 0);
    if (code == SQLITE_OK) self->is_full_sync = batch->is_durable;
  }
  if (code == SQLITE_OK) code = disk_run_batch(self, batch, answer);
  /* What was bound lies in the batch, whose memory goes. */
  for (int at = 0; at < batch->segments_count; at++) {
    int which = batch->segments[at].statement;
    if (which < 0 || which >= self->statements_count) continue;
    sqlite3_clear_bindings(self->statements[which].one);
    if (self->statements[which].many) sqlite3_clear_bindings(self->statements[which].many);
  }
  if (code == SQLITE_OK) return;
  disk_say(self, code, answer->text);
  disk_end_view(self);
  answer->kind = disk_kind(self, code);
  /* The log is not brought into what cannot be trusted, now or at the end. */
  if (answer->kind == KIND_DAMAGED && !self->is_damaged)
    self->is_damaged =
        sqlite3_db_config(self->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)0) == SQLITE_OK;
  /* After some errors SQLite has rolled back itself. */
  if (!sqlite3_get_autocommit(self->db)) sqlite3_exec(self->db, "ROLLBACK", 0, 0, 0);
}

/* -- the thread -------------------------------------------------------------------------------- */

static int disk_on_commit(void *self, sqlite3 *db, const char *name, int pages) {
  (void)db;
  (void)name;
  ((disk *)self)->wal_pages = pages;
  return SQLITE_OK;
}

static int disk_open(disk *self) {
  int code = sqlite3_open_v2(self->path, &self->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, 0);
  if (code == SQLITE_OK) code = sqlite3_busy_timeout(self->db, self->busy_ms);
  if (code == SQLITE_OK) code = sqlite3_exec(self->db, self->pragmas, 0, 0, 0);
  if (code == SQLITE_OK)
    code = sqlite3_prepare_v2(self->db, "BEGIN IMMEDIATE", -1, &self->begin, 0);
  if (code == SQLITE_OK) code = sqlite3_prepare_v2(self->db, "COMMIT", -1, &self->commit, 0);
  if (code == SQLITE_OK)
    code = sqlite3_prepare_v2(self->db, "SELECT 1 FROM sqlite_schema", -1, &self->view, 0);
  for (int at = 0; code == SQLITE_OK && at < self->statements_count; at++)
    code = disk_prepare(self, self->statements + at, 1, &self->statements[at].one);
  /* Replaces SQLite's own automatic checkpoint. */
  if (code == SQLITE_OK) sqlite3_wal_hook(self->db, disk_on_commit, self);
  return code;
}

static void disk_shut(disk *self) {
  for (int at = 0; at < self->statements_count; at++) {
    sqlite3_finalize(self->statements[at].one);
    sqlite3_finalize(self->statements[at].many);
    self->statements[at].one = self->statements[at].many = 0;
  }
  sqlite3_finalize(self->begin);
  sqlite3_finalize(self->commit);
  sqlite3_finalize(self->view);
  self->begin = self->commit = self->view = 0;
  sqlite3_close_v2(self->db);
  self->db = 0;
}

/* Bring the log into the file if it is long, or if there is time. A failure costs nothing but a
 * longer log; the next commit meets the same disk and tells. */
static void disk_checkpoint_if_due(disk *self, int is_idle) {
  if (self->is_damaged || self->wal_pages < (is_idle ? self->pages_idle : self->checkpoint_at)) return;
  int pages = 0, done = 0;
  disk_end_view(self);
  if (sqlite3_wal_checkpoint_v2(self->db, 0, SQLITE_CHECKPOINT_PASSIVE, &pages, &done)) {
    pages = self->wal_pages;
    done = 0;
  }
  int is_empty = done >= pages;
  self->wal_pages = is_empty || is_idle ? 0 : pages;
  self->checkpoint_at = is_empty ? self->pages_max : pages + self->pages_step;
}

static void disk_ring(disk *self) {
  uint64_t one = 1;
  while (write(self->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void disk_answer_batch(disk *self, disk_answer *answer) {
  pthread_mutex_lock(&self->mutex);
  if (self->newest_answer)
    self->newest_answer->next = answer;
  else
    self->answers = answer;
  self->newest_answer = answer;
  disk_ring(self); /* under the mutex: once `has_ended` is seen, nobody touches the eventfd */
  pthread_mutex_unlock(&self->mutex);
}

/* Waits for a batch; NULL once it is closing and none is left. */
static disk_batch *disk_next_batch(disk *self) {
  int is_rested = 0;
  pthread_mutex_lock(&self->mutex);
  while (!self->batches && !self->is_closing) {
    if (is_rested) {
      pthread_cond_wait(&self->wake, &self->mutex);
      continue;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += self->idle_ms / 1000;
    until.tv_nsec += (self->idle_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
      until.tv_sec++;
      until.tv_nsec -= 1000000000L;
    }
    int code = 0;
    while (!self->batches && !self->is_closing && code != ETIMEDOUT)
      code = pthread_cond_timedwait(&self->wake, &self->mutex, &until);
    if (self->batches || self->is_closing) break;
    pthread_mutex_unlock(&self->mutex);
    disk_end_view(self);
    disk_checkpoint_if_due(self, 1);
    if (self->rows_written >= REST_ROWS) {
      sqlite3_db_release_memory(self->db);
      self->rows_written = 0;
    }
    pthread_mutex_lock(&self->mutex);
    is_rested = 1;
  }
  disk_batch *batch = self->batches;
  if (batch) {
    self->batches = batch->next;
    if (!self->batches) self->newest_batch = 0;
  }
  pthread_mutex_unlock(&self->mutex);
  return batch;
}

static void *disk_main(void *given) {
  disk *self = given;
  char ending[MESSAGE_BYTES] = "";
  int code = disk_open(self);
  if (code != SQLITE_OK) {
    disk_say(self, code, ending);
  } else {
    for (disk_batch *batch; (batch = disk_next_batch(self));) {
      disk_answer *answer = calloc(1, sizeof *answer);
      if (!answer) {
        disk_free_batch(batch);
        snprintf(ending, sizeof ending, "NoMemError: out of memory");
        break;
      }
      answer->number = batch->number;
      disk_write(self, batch, answer);
      if (disk_is_small(batch))
        answer->batch = batch;
      else
        disk_free_batch(batch);
      disk_answer_batch(self, answer);
      disk_checkpoint_if_due(self, 0);
    }
  }
  disk_shut(self);
  pthread_mutex_lock(&self->mutex);
  memcpy(self->ending, ending, sizeof ending);
  self->has_ended = 1;
  disk_ring(self);
  pthread_mutex_unlock(&self->mutex);
  disk_release(self);
  return 0;
}

/* Start the thread with all signals blocked: they are the program's. Returns an errno. */
static int disk_start(disk *self) {
  pthread_attr_t detached;
  pthread_t thread;
  sigset_t all, before;
  int error = pthread_attr_init(&detached);
  if (error) return error;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  self->references = 2; /* the thread's and the caller's */
  error = pthread_create(&thread, &detached, disk_main, self);
  if (error) self->references = 1;
  pthread_sigmask(SIG_SETMASK, &before, 0);
  pthread_attr_destroy(&detached);
  return error;
}

static disk *disk_new(void) {
  disk *self = calloc(1, sizeof *self);
  if (!self) return 0;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&self->wake, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_mutex_init(&self->mutex, 0);
  self->references = 1;
  return self;
}

static void disk_submit(disk *self, disk_batch *batch) {
  pthread_mutex_lock(&self->mutex);
  if (self->newest_batch)
    self->newest_batch->next = batch;
  else
    self->batches = batch;
  self->newest_batch = batch;
  pthread_mutex_unlock(&self->mutex);
  pthread_cond_signal(&self->wake); /* after it, or the thread wakes only to wait for the mutex */
}

static void disk_close(disk *self) {
  pthread_mutex_lock(&self->mutex);
  self->is_closing = 1;
  pthread_cond_signal(&self->wake);
  pthread_mutex_unlock(&self->mutex);
}

/* Return the answers that were not taken yet, the oldest first, and whether the thread has ended
 * behind them; then also why. */
static disk_answer *disk_take_answers(disk *self, int *has_ended, char *ending) {
  pthread_mutex_lock(&self->mutex);
  disk_answer *answers = self->answers;
  self->answers = self->newest_answer = 0;
  *has_ended = self->has_ended;
  if (self->has_ended) memcpy(ending, self->ending, MESSAGE_BYTES);
  pthread_mutex_unlock(&self->mutex);
  return answers;
}

static int disk_read_event(disk *self) {
  uint64_t count;
  return read(self->event_fd, &count, sizeof count) == sizeof count;
}

/* How often this process is the child of a fork: its threads are its parent's. */
static int disk_forks;

static void disk_forked(void) { disk_forks++; }

static void disk_count_forks(void) {
  static int is_counting;
  if (!is_counting) is_counting = !pthread_atfork(0, 0, disk_forked);
}

/* What SQLite calls when it loads this module as one of its extensions; see sqlite_face.h. */
__attribute__((visibility("default"))) int bunqueue_take_sqlite(sqlite3 *db, char **error,
                                                                void *const *table) {
  (void)db;
  (void)error;
  sqlite_table = table;
  return SQLITE_OK;
}

static int disk_sqlite_version(void) { return sqlite_table ? sqlite3_libversion_number() : 0; }

static int disk_is_threadsafe(void) { return sqlite_table && sqlite3_threadsafe(); }

#endif
