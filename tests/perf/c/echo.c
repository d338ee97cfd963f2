// Echo of 64 bytes over the RDMA connection manager, TCP or a pipe in each direction, for programs
// that wait.
//
//   echo rdma|tcp|pipe epoll|block server PORT
//   echo rdma|tcp|pipe epoll|block client PORT COUNT MILLIS
//
// The pipes are files PORT.to and PORT.from, which the server makes. They wake the other process
// and do nothing else, so that they show what the scheduler allows.
//
// `epoll` waits in an event loop for non-blocking descriptors, `block` in a receiving call. The
// server prints a line when it listens. The client stops after COUNT round trips or MILLIS
// milliseconds, and prints the microseconds per direction, and the round trips with the warm-up.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LEN 64
#define RECEIVES 16
/* Every so many sends one has a completion. */
#define SIGNAL 32
#define WARM_UP 100
/* A process that lives longer than this many seconds has lost its peer. */
#define LIMIT 40

#define CHECK(ok)                                                                                  \
  do {                                                                                             \
    if (!(ok)) {                                                                                   \
      fprintf(stderr, "echo.c:%d: %s: %s\n", __LINE__, #ok, strerror(errno));                      \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static bool is_rdma, is_pipe, is_epoll;
/* The socket twice, or a pipe for each direction. */
static int epoll_fd, in_fd, out_fd;
static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static char received[RECEIVES][LEN], outgoing[LEN];
static unsigned sends;

static void watch(int fd) {
  struct epoll_event event = {.events = EPOLLIN};
  CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
  CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void await_descriptor(void) {
  struct epoll_event event;
  CHECK(epoll_wait(epoll_fd, &event, 1, -1) == 1 || errno == EINTR);
}

static void connect_tcp(bool server, int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  if (server) {
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, 1) == 0);
    puts("ready");
    fflush(stdout);
    CHECK((in_fd = accept(listener, NULL, NULL)) >= 0);
  } else {
    in_fd = listener;
    CHECK(connect(in_fd, (struct sockaddr *)&address, sizeof address) == 0);
  }
  CHECK(setsockopt(in_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  out_fd = in_fd;
  if (is_epoll)
    watch(in_fd);
}

static int open_pipe(bool server, const char *name, const char *direction) {
  char path[4096];
  int fd;
  CHECK(snprintf(path, sizeof path, "%s.%s", name, direction) < (int)sizeof path);
  CHECK(!server || mkfifo(path, 0600) == 0);
  // Opened for both, so that the call does not wait for the other end.
  CHECK((fd = open(path, O_RDWR)) >= 0);
  return fd;
}

static void connect_pipes(bool server, const char *name) {
  int to = open_pipe(server, name, "to"), from = open_pipe(server, name, "from");
  in_fd = server ? to : from;
  out_fd = server ? from : to;
  if (server) {
    puts("ready");
    fflush(stdout);
  }
  if (is_epoll)
    watch(in_fd);
}

static void post_receive(uintptr_t slot) {
  CHECK(rdma_post_recv(id, (void *)slot, received[slot], LEN, mr) == 0);
}

static void connect_rdma(bool server, const char *port) {
  struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = server ? RAI_PASSIVE : 0};
  struct rdma_addrinfo *address;
  struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
  struct rdma_cm_id *listener;
  struct ibv_qp_init_attr attributes = {
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 2 * SIGNAL, .max_recv_wr = RECEIVES, .max_send_sge = 1,
              .max_recv_sge = 1, .max_inline_data = LEN},
  };
  CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &address) == 0);
  CHECK(rdma_create_ep(server ? &listener : &id, address, NULL, &attributes) == 0);
  if (server) {
    CHECK(rdma_listen(listener, 1) == 0);
    puts("ready");
    fflush(stdout);
    CHECK(rdma_get_request(listener, &id) == 0);
  }
  CHECK((mr = rdma_reg_msgs(id, received, sizeof received)) != NULL);
  for (uintptr_t slot = 0; slot < RECEIVES; slot++)
    post_receive(slot);
  if (is_epoll)
    watch(id->recv_cq_channel->fd);
  CHECK(ibv_req_notify_cq(id->recv_cq, 0) == 0);
  CHECK((server ? rdma_accept(id, &parameters) : rdma_connect(id, &parameters)) == 0);
}

static void send_message(char mark) {
  bool signaled = ++sends % SIGNAL == 0;
  struct ibv_wc done;
  outgoing[0] = mark;
  if (is_pipe) {
    CHECK(write(out_fd, outgoing, LEN) == LEN);
    return;
  }
  if (!is_rdma) {
    CHECK(send(out_fd, outgoing, LEN, MSG_NOSIGNAL) == LEN);
    return;
  }
  // The completion of the last signaled send frees its predecessors too.
  if (signaled && sends > SIGNAL) {
    while (ibv_poll_cq(id->send_cq, 1, &done) == 0)
      ;
    CHECK(done.status == IBV_WC_SUCCESS);
  }
  CHECK(rdma_post_send(id, NULL, outgoing, LEN, NULL,
                       IBV_SEND_INLINE | (signaled ? IBV_SEND_SIGNALED : 0)) == 0);
}

static char receive_bytes(void) {
  char buffer[LEN];
  for (ssize_t had = 0, more; had < LEN; had += more) {
    if (is_epoll)
      await_descriptor();
    more = is_pipe ? read(in_fd, buffer + had, LEN - had)
                   : recv(in_fd, buffer + had, LEN - had, is_epoll ? 0 : MSG_WAITALL);
    if (more < 0 && errno == EAGAIN)
      more = 0;
    else
      CHECK(more > 0);
  }
  return buffer[0];
}

static char receive_rdma(void) {
  struct ibv_wc done;
  int count;
  while ((count = ibv_poll_cq(id->recv_cq, 1, &done)) == 0) {
    struct ibv_cq *cq;
    void *context;
    if (is_epoll)
      await_descriptor();
    if (ibv_get_cq_event(id->recv_cq_channel, &cq, &context) != 0) {
      CHECK(errno == EAGAIN || errno == EINTR);
      continue;
    }
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
  }
  CHECK(count == 1 && done.status == IBV_WC_SUCCESS);
  char mark = received[done.wr_id][0];
  post_receive(done.wr_id);
  return mark;
}

static char receive_message(void) { return is_rdma ? receive_rdma() : receive_bytes(); }

static double micros(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void ask(unsigned count, double limit) {
  double began = 0, elapsed = 0;
  unsigned trips = 0;
  for (; trips < WARM_UP + count && elapsed < limit; trips++) {
    if (trips == WARM_UP)
      began = micros();
    send_message(0);
    receive_message();
    if (trips >= WARM_UP)
      elapsed = micros() - began;
  }
  send_message(1);
  receive_message();
  printf("%.3f %u\n", elapsed / (trips - WARM_UP) / 2, trips);
}

static void answer(void) {
  char mark;
  do {
    mark = receive_message();
    send_message(mark);
  } while (mark == 0);
}

/* The server ends after the client, because its last message may still be under way. */
static void end(bool server) {
  if (is_pipe)
    return;
  if (!is_rdma) {
    char buffer[1];
    CHECK(fcntl(in_fd, F_SETFL, 0) == 0);
    if (server)
      CHECK(recv(in_fd, buffer, 1, 0) == 0);
    return;
  }
  struct rdma_cm_event *event;
  if (server) {
    CHECK(rdma_get_cm_event(id->channel, &event) == 0);
    CHECK(event->event == RDMA_CM_EVENT_DISCONNECTED);
    rdma_ack_cm_event(event);
  } else {
    CHECK(rdma_disconnect(id) == 0);
  }
}

int main(int argc, char **argv) {
  CHECK(argc >= 5);
  is_rdma = strcmp(argv[1], "rdma") == 0;
  is_pipe = strcmp(argv[1], "pipe") == 0;
  is_epoll = strcmp(argv[2], "epoll") == 0;
  bool server = strcmp(argv[3], "server") == 0;
  alarm(LIMIT);
  CHECK(!is_epoll || (epoll_fd = epoll_create1(0)) >= 0);
  if (is_rdma)
    connect_rdma(server, argv[4]);
  else if (is_pipe)
    connect_pipes(server, argv[4]);
  else
    connect_tcp(server, atoi(argv[4]));
  if (server) {
    answer();
  } else {
    CHECK(argc == 7);
    ask(strtoul(argv[5], NULL, 10), atof(argv[6]) * 1e3);
  }
  end(server);
  return 0;
}
